package run

import (
	"errors"
	"fmt"
	"slices"

	"vnic.dev/vnic/internal/transfer"
)

// ErrProof says that a transfer ended, but not as it must.
var ErrProof = errors.New("the transfer does not prove what it should")

// check holds each transfer against what its mode must prove, and makes sure that all NICs have been given back what
// they had.
func (r *runner) check(rep *Report) error {
	var errs []error
	for _, s := range r.streams {
		errs = append(errs, s.wrong...)
		s.wrong = nil
	}
	if r.lost() == nil { // else a device was removed, and nothing was given back
		for _, e := range r.ends() {
			errs = append(errs, e.empty())
		}
	}
	return rep.check(r.opt, r.streams, errors.Join(errs...))
}

// check holds the report against what each mode must prove. streams are those of its rails; without rails there may be
// none. more is what else is wrong.
func (rep *Report) check(o *Options, streams []*stream, more error) error {
	var errs []error
	judge := func(of string, r *Run, o *Options, here [2]bool) {
		for _, wrong := range append(r.wrong(o, here), r.wrongAudit(here)...) {
			errs = append(errs, fmt.Errorf("mode %s%s: %s", r.Mode, of, wrong))
		}
	}
	if o.Rails == 0 {
		if len(rep.Runs) != len(o.Modes) {
			errs = append(errs, fmt.Errorf("%d of %d modes ran", len(rep.Runs), len(o.Modes)))
		}
		for i := range rep.Runs {
			judge("", &rep.Runs[i], o, [2]bool{true, true})
		}
	}
	for i := range rep.Rails {
		x := &rep.Rails[i]
		s := streams[slices.IndexFunc(streams, func(s *stream) bool { return s.is.From == x.From && s.is.To == x.To })]
		of := fmt.Sprintf(", %s to %s", x.From, x.To)
		if o.MustShare && (x.Share == nil || x.Share.OfRate == nil) {
			errs = append(errs, fmt.Errorf("mode %s%s: no share: %s", x.Mode, of, x.Share.why()))
		}
		judge(of, &x.Run, &s.opt, [2]bool{!s.ends[0].away(), !s.ends[1].away()})
	}
	if err := errors.Join(append(errs, more)...); err != nil {
		return fmt.Errorf("%w:\n%w", ErrProof, err)
	}
	return nil
}

// wrong says what a run's digest and counters show that they must not. here says which ends there are counters of.
func (r *Run) wrong(o *Options, here [2]bool) (wrong []string) {
	is := func(bad bool, format string, args ...any) {
		if bad {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	is(r.Bytes != o.Size, "%d bytes of %d", r.Bytes, o.Size)
	is(!r.SHA256Match && here[1], "the destination's digest is not the source's")
	is(!r.SHA256Match && !here[1], "the source is not what the seed says")
	less := func(sent, received uint64) bool { return here[0] && sent < r.Bytes || here[1] && received < r.Bytes }
	if r.Mode == transfer.Devmem && o.P2P {
		is(r.TX.Host != 0 || r.RX.Host != 0, "payload in host memory: %d bytes sent, %d received", r.TX.Host, r.RX.Host)
		is(less(r.TX.Device, r.RX.Device), "device memory saw %d bytes sent, %d received, of %d", r.TX.Device,
			r.RX.Device, r.Bytes)
		is(r.LinearBytes != 0, "%d bytes came in host memory", r.LinearBytes)
		is(r.BouncedBytes != 0, "%d bytes were bounced through host memory", r.BouncedBytes)
		return wrong
	}
	is(less(r.TX.Host, r.RX.Host),
		"host memory saw %d bytes sent, %d received, of %d: the counters do not see what they must",
		r.TX.Host, r.RX.Host, r.Bytes)
	is(r.TX.Device != 0 || r.RX.Device != 0,
		"device memory saw %d bytes sent, %d received: the counters see what is not there", r.TX.Device, r.RX.Device)
	is(r.Mode == transfer.Devmem && r.BouncedBytes < r.Bytes,
		"%d bytes were bounced, of %d: the counters do not see what they must", r.BouncedBytes, r.Bytes)
	return wrong
}

// wrongAudit says what the search of the guests' RAM shows that it must not.
func (r *Run) wrongAudit(here [2]bool) (wrong []string) {
	a := r.Audit
	if a == nil {
		return nil
	}
	if a.BytesScanned == 0 {
		wrong = append(wrong, "audit: nothing was searched")
	}
	if hits := a.HitsSender + a.HitsReceiver; r.Mode == transfer.Devmem && hits != 0 {
		wrong = append(wrong, fmt.Sprintf("audit: %d pieces of payload in guest RAM", hits))
	}
	// A payload shorter than a window has no window to be found.
	if r.Mode == transfer.Copy && r.Bytes >= 4096 && (here[0] && a.HitsSender == 0 || here[1] && a.HitsReceiver == 0) {
		wrong = append(wrong,
			fmt.Sprintf("audit: %d pieces of payload in the sender's RAM, %d in the receiver's: the audit does not see "+
				"what it must",
				a.HitsSender, a.HitsReceiver))
	}
	return wrong
}
