package run

import (
	"errors"
	"fmt"
	"slices"

	"vnic.dev/vnic/internal/report"
	"vnic.dev/vnic/internal/transfer"
)

// ErrProof means that the transfers ended, but their results contradict the proof.
var ErrProof = errors.New("the transfer does not prove what it should")

// check compares the results with what each mode must prove. Unless a removed device ended a transfer, it also
// checks that the guests on this host have released their NICs' buffers.
func (r *runner) check(rep *Report) error {
	var errs []error
	for _, s := range r.streams {
		errs = append(errs, s.wrong...)
		s.wrong = nil
	}
	if r.lost() == nil { // a removed device releases nothing
		for _, e := range r.ends() {
			errs = append(errs, e.empty())
		}
	}
	return rep.check(r.opt, r.streams, errors.Join(errs...))
}

// check compares the report with what each mode must prove: Runs or, with rails, Rails. streams has the stream of each
// direction of each rail; without rails it may be empty. more is an error that joins the result.
func (rep *Report) check(o *Options, streams []*stream, more error) error {
	var f report.Findings
	if o.Rails == 0 {
		f.If(len(rep.Runs) != len(o.Modes), "%d of %d modes ran", len(rep.Runs), len(o.Modes))
		for i := range rep.Runs {
			f.Within("mode "+rep.Runs[i].Mode, rep.Runs[i].wrong(o, [2]bool{true, true}))
		}
	}
	for i := range rep.Rails {
		x := &rep.Rails[i]
		s := streams[slices.IndexFunc(streams, func(s *stream) bool { return s.rail.From == x.From && s.rail.To == x.To })]
		wrong := x.wrong(&s.opt, [2]bool{!s.ends[0].away(), !s.ends[1].away()})
		wrong.If(o.MustShare && (x.Share == nil || x.Share.OfRate == nil), "no share: %s", x.Share.why())
		f.Within(fmt.Sprintf("mode %s, %s to %s", x.Mode, x.From, x.To), wrong)
	}
	return append(f, more).Err(ErrProof)
}

// wrong lists what contradicts a run's proof. here: the sender, and the receiver, is on this host.
func (r *Run) wrong(o *Options, here [2]bool) (f report.Findings) {
	f.If(r.Bytes != o.Size, "%d bytes of %d", r.Bytes, o.Size)
	f.If(!r.SHA256Match && here[1], "the destination's digest is not the source's")
	f.If(!r.SHA256Match && !here[1], "the source is not what the seed says")
	less := func(sent, received uint64) bool { return here[0] && sent < r.Bytes || here[1] && received < r.Bytes }
	if r.Mode == transfer.Devmem && o.P2P {
		f.If(r.TX.Host != 0 || r.RX.Host != 0, "payload in host memory: %d bytes sent, %d received", r.TX.Host, r.RX.Host)
		f.If(less(r.TX.Device, r.RX.Device), "device memory saw %d bytes sent, %d received, of %d", r.TX.Device,
			r.RX.Device, r.Bytes)
		f.If(r.LinearBytes != 0, "%d bytes came in host memory", r.LinearBytes)
		f.If(r.BouncedBytes != 0, "%d bytes were bounced through host memory", r.BouncedBytes)
	} else {
		f.If(less(r.TX.Host, r.RX.Host),
			"host memory saw %d bytes sent, %d received, of %d: the counters do not see what they must",
			r.TX.Host, r.RX.Host, r.Bytes)
		f.If(r.TX.Device != 0 || r.RX.Device != 0,
			"device memory saw %d bytes sent, %d received: the counters see what is not there", r.TX.Device, r.RX.Device)
		f.If(r.Mode == transfer.Devmem && r.BouncedBytes < r.Bytes,
			"%d bytes were bounced, of %d: the counters do not see what they must", r.BouncedBytes, r.Bytes)
	}
	a := r.Audit
	if a == nil {
		return f
	}
	f.If(a.BytesScanned == 0, "audit: nothing was searched")
	hits := a.HitsSender + a.HitsReceiver
	f.If(r.Mode == transfer.Devmem && hits != 0, "audit: %d pieces of payload in guest RAM", hits)
	// The audit finds pieces of payload from 64 bytes on, and a very short payload may have none.
	blind := here[0] && a.HitsSender == 0 || here[1] && a.HitsReceiver == 0
	f.If(r.Mode == transfer.Copy && r.Bytes >= 4096 && blind,
		"audit: %d pieces of payload in the sender's RAM, %d in the receiver's: the audit does not see what it must",
		a.HitsSender, a.HitsReceiver)
	return f
}
