package nvmetcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"syscall"
	"time"

	"vnic.dev/vnic/block"
)

const (
	adminEntries = 32      // of the admin queue; a target must allow at least as many (Fabrics 3.3)
	noLimit      = 4 << 20 // most bytes of MaxTransfer if the target's MDTS is 0
	maxNLB       = 1 << 16 // most blocks of a command
	minLBADS     = 9       // 9 is the log2 of 512 bytes, the smallest block
	maxLBADS     = 20
	readyPause   = 10 * time.Millisecond
	maxPDO       = math.MaxUint8
)

type controller struct {
	cntlid    uint16
	capab     uint64 // CAP
	name      string // model, and the NQN in parentheses
	mdts      uint8
	inCapsule uint64 // most bytes of data in a capsule; 0: none
	icdoff    uint16 // ICDOFF, in units of 16 bytes
	maxCmd    int    // MAXCMD; 0: not reported
	info      block.Info
}

// connect connects the admin queue (Fabrics 3.3), enables the controller, identifies it and the namespace, and
// requests one I/O queue (Set Features), which ioQueue connects.
func (d *Device) connect(ctx context.Context) error {
	k, l := &d.ctrl, d.admin
	if err := l.open(); err != nil {
		return err
	}
	result, err := l.do(connectName, connectSQE(0, adminEntries, 0),
		connectData(hostID(d.c.HostNQN), anyCNTLID, d.c.NQN, d.c.HostNQN), nil)
	if err != nil {
		return err
	}
	if result>>16&3 != 0 { // AUTHREQ
		return fmt.Errorf("%s: the target wants in-band authentication, which is not supported: %w", connectName,
			syscall.EACCES)
	}
	k.cntlid = uint16(result)
	if k.capab, err = l.property(propCAP, true); err != nil {
		return err
	}
	if err := l.enable(ctx, k.capab); err != nil {
		return err
	}
	if err := d.identify(); err != nil {
		return err
	}
	s := newSQE(opSetFeatures, 0)
	s.setDword(10, queuesFID)
	s.setDword(11, 0) // one submission and one completion queue: each count less one
	_, err = l.do("Set Features, number of queues", s, nil, nil)
	return err
}

// property executes Property Get (Fabrics 3.5) for the property at off, of 8 bytes if wide is set, else of 4.
func (l *link) property(off uint32, wide bool) (uint64, error) {
	s := newFabrics(fabricsPropertyGet)
	if wide {
		s[40] = 1
	}
	le.PutUint32(s[44:], off)
	v, err := l.do(fmt.Sprintf("Property Get %#x", off), s, nil, nil)
	if !wide {
		v &= math.MaxUint32
	}
	return v, err
}

// setProperty executes Property Set of 4 bytes (Fabrics 3.6).
func (l *link) setProperty(off, v uint32) error {
	s := newFabrics(fabricsPropertySet)
	le.PutUint32(s[44:], off)
	le.PutUint64(s[48:], uint64(v))
	_, err := l.do(fmt.Sprintf("Property Set %#x", off), s, nil, nil)
	return err
}

// cc returns the CC that enables a controller with CAP capab, with the smallest page size that CAP allows.
func cc(capab uint64) uint32 { return ccEnable | ccSQES | ccCQES | uint32(capab>>48&0xf)<<7 }

// enable sets CC.EN and waits for CSTS.RDY, for up to CAP.TO (Base 3.1.1; 500 ms if it is 0), or until ctx ends.
func (l *link) enable(ctx context.Context, capab uint64) error {
	if err := l.setProperty(propCC, cc(capab)); err != nil {
		return err
	}
	limit := max(time.Duration(capab>>24&0xff), 1) * 500 * time.Millisecond
	return l.await(ctx, limit, "CSTS.RDY", func(csts uint64) bool { return csts&cstsReady != 0 })
}

// await reads CSTS until reached returns true. It returns ETIMEDOUT if that takes longer than limit, EIO if CFS is
// set, and the cause if ctx ends.
func (l *link) await(ctx context.Context, limit time.Duration, what string, reached func(csts uint64) bool) error {
	for end := time.Now().Add(limit); ; {
		csts, err := l.property(propCSTS, false)
		switch {
		case err != nil:
			return err
		case csts&cstsFatal != 0:
			return fmt.Errorf("the controller has failed: CSTS %#x: %w", csts, syscall.EIO)
		case reached(csts):
			return nil
		case time.Now().After(end):
			return fmt.Errorf("no %s in %v: CSTS %#x: %w", what, limit, csts, syscall.ETIMEDOUT)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(readyPause):
		}
	}
}

// identify sends Identify for the controller and for the namespace (Base 5.15), and checks the answers.
func (d *Device) identify() error {
	var b [identifyLen]byte
	ask := func(name string, cns, nsid uint32) error {
		s := newSQE(opIdentify, nsid)
		s.setDword(10, cns)
		_, err := d.admin.do(name, s, nil, b[:])
		return err
	}
	const what = "Identify controller"
	if err := ask(what, cnsCtrl, 0); err != nil {
		return err
	}
	if err := d.ctrl.isController(&b, d.c.NQN); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	name := fmt.Sprintf("Identify namespace %d", d.c.Namespace)
	if err := ask(name, cnsNamespace, d.c.Namespace); err != nil {
		return err
	}
	if err := d.ctrl.isNamespace(&b); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// isController sets fields of k from b, an Identify Controller data structure (Base figure 247; Fabrics 4.1). It
// returns an error for a controller that the Device cannot use.
func (k *controller) isController(b *[identifyLen]byte, nqn string) error {
	subNQN, _, _ := bytes.Cut(b[768:1024], []byte{0})
	switch cntrltype := b[111]; {
	case cntrltype > 1:
		return fmt.Errorf("it is no I/O controller but of type %d (2: discovery, 3: administrative), without namespaces: %w",
			cntrltype, syscall.EMEDIUMTYPE)
	case string(subNQN) != nqn:
		return violation("SUBNQN %q, not %q", subNQN, nqn)
	}
	sgls, ioccsz, icdoff := le.Uint32(b[536:]), le.Uint32(b[1792:]), le.Uint16(b[1800:])
	if sgls&3 == 0 {
		return fmt.Errorf("SGLS %#x: it has no SGLs: %w", sgls, syscall.EOPNOTSUPP)
	}
	k.mdts, k.icdoff = b[77], icdoff
	k.maxCmd = int(le.Uint16(b[514:]))
	k.name = fmt.Sprintf("%s (%s)", printable(b[24:64]), nqn)
	// IOCCSZ is the capsule's length, with the SQE, in units of 16 bytes; ICDOFF is the distance from the SQE's end to
	// the data, in the same units.
	if room, before := 16*uint64(ioccsz), sqeLen+16*uint64(icdoff); room > before {
		k.inCapsule = room - before
	}
	return nil
}

// printable replaces NUL by a space, other characters that are not printable ASCII by '?', and cuts spaces at the end.
func printable(b []byte) string {
	return strings.TrimRight(strings.Map(func(r rune) rune {
		switch {
		case r == 0:
			return ' '
		case r < ' ' || r > '~':
			return '?'
		}
		return r
	}, string(b)), " ")
}

// isNamespace sets k.info, except MaxDepth, from b, an Identify Namespace data structure (Base figure 245), and k's
// other fields. It returns an error for a namespace that the Device cannot use.
func (k *controller) isNamespace(b *[identifyLen]byte) error {
	nsze, flbas := le.Uint64(b[:]), b[26]
	format := int(flbas&0xf) | int(flbas>>5&3)<<4
	lbaf := b[128+4*format:]
	ms, lbads := le.Uint16(lbaf), lbaf[2]
	switch {
	case nsze == 0:
		return fmt.Errorf("it is not active: %w", syscall.ENODEV)
	case ms != 0:
		return fmt.Errorf("its blocks have %d bytes of metadata, which is not supported: %w", ms, syscall.EOPNOTSUPP)
	case b[29]&7 != 0: // DPS
		return fmt.Errorf("it has protection information of type %d, which is not supported: %w", b[29]&7,
			syscall.EOPNOTSUPP)
	case lbads < minLBADS || lbads > maxLBADS:
		return violation("LBADS %d: blocks have 2^%d to 2^%d bytes", lbads, minLBADS, maxLBADS)
	case nsze > math.MaxUint64>>lbads:
		return violation("NSZE %d, of blocks of %d bytes", nsze, 1<<lbads)
	}
	size := uint64(1) << lbads
	k.info = block.Info{Size: nsze << lbads, BlockSize: size, ReadOnly: b[99]&1 != 0, Name: k.name}
	k.info.MaxTransfer = noLimit
	if page := 12 + uint(k.capab>>48&0xf); k.mdts > 0 { // MDTS is the log2 of a number of pages of the size in CAP.MPSMIN
		k.info.MaxTransfer = uint64(1) << min(uint(k.mdts)+page, 31) // a PDU's DATAL has 32 bits
	}
	k.info.MaxTransfer = min(k.info.MaxTransfer, maxNLB*size) &^ (size - 1)
	if k.info.MaxTransfer == 0 {
		return fmt.Errorf("MDTS %d is less than a block of %d bytes: %w", k.mdts, size, syscall.EOPNOTSUPP)
	}
	return nil
}

// shutdown asks the controller to shut down (Base 7.6.2), and waits for that, for up to about Config.Timeout. It
// ignores errors.
func (d *Device) shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), d.c.Timeout)
	defer cancel()
	if err := d.admin.setProperty(propCC, cc(d.ctrl.capab)|ccShutdown); err != nil {
		return
	}
	_ = d.admin.await(ctx, d.c.Timeout, "CSTS.SHST", func(csts uint64) bool {
		return csts&cstsShutMask == cstsShutDone
	})
}

// ioQueue connects the I/O queue without SQ flow control: Linux's target then omits the responses to successful reads.
// If the target refuses Connect for CATTR or with Invalid Field in Command, ioQueue tries once more, with SQ flow
// control.
func (d *Device) ioQueue(ctx context.Context) error {
	refused := (*commandError)(nil)
	err := d.tryQueue(ctx, noSQFlow)
	if errors.As(err, &refused) && (refused.status.code() == 0x002 ||
		refused.status.code() == 0x182 && connectFault(refused.result) == "CATTR") {
		err = d.tryQueue(ctx, 0)
	}
	if err != nil {
		return fmt.Errorf("I/O queue: %w", err)
	}
	return nil
}

func (d *Device) tryQueue(ctx context.Context, attr uint8) error {
	l, err := d.dial(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { abort(l.c) })
	defer stop()
	if err = l.open(); err == nil {
		_, err = l.do(connectName, connectSQE(1, d.ctrl.info.MaxDepth+1, attr),
			connectData(hostID(d.c.HostNQN), d.ctrl.cntlid, d.c.NQN, d.c.HostNQN), nil)
	}
	if err == nil {
		err = l.c.SetDeadline(time.Time{})
	}
	if err != nil {
		abort(l.c)
		return err
	}
	d.q.conn, d.q.align, d.q.maxH2C = l.c, l.align, l.maxH2C
	return nil
}
