package ncdevmem

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"vnic.dev/vnic/gpumem"
)

const caseLimit = 90 * time.Second

type receiving struct {
	name          string
	v6            bool
	port          uint16
	size          uint64
	queue, queues int    // ncdevmem's -t and -q: the first queue bound, and how many
	client        bool   // -c: the flow rule also names the peer's address and port
	onGPU         bool   // ncdevmem's buffer is the GPU's memory
	validate      bool   // -v 7; otherwise ncdevmem prints the received bytes
	seed          uint64 // of the bytes that the peer sends without validate
}

// Files with the program's output. The test fetches them only when the program has ended, because ncdevmem restarts
// the interface. In a restart a packet of any connection may stay in its queue (docs/specs/gve.md, 11: gve_turnup
// starts transmit queues and does not wake them), and while it is there TCP does not retransmit it.
const (
	stdoutFile = "/tmp/out"
	stderrFile = "/tmp/err"
)

func (r *receiving) command(l *bench, guest, peer netip.Addr) string {
	s := ""
	if r.onGPU {
		s = l.onGPU()
	}
	s += fmt.Sprintf("exec ncdevmem -l -L -f eth0 -s %v -p %d -t %d -q %d", guest, r.port, r.queue, r.queues)
	if r.client {
		s += fmt.Sprintf(" -c %v", peer)
	}
	if r.validate {
		s += fmt.Sprintf(" -v %d", period)
	}
	return s + " >" + stdoutFile + " 2>" + stderrFile
}

func (l *bench) receive(ctx context.Context, j *judge, r receiving) error {
	j.begin(fmt.Sprintf("%s: %d MiB, %d queues bound from %d on", r.name, r.size>>20, r.queues, r.queue))
	ctx, cancel := context.WithTimeout(ctx, caseLimit)
	defer cancel()
	guest, peer := addrs(r.v6)
	to, from := netip.AddrPortFrom(guest, r.port), netip.AddrPortFrom(peer, r.port)
	start := time.Now()
	var connect, moved time.Duration
	x, err := l.beside(ctx, to, from, r.command(l, guest, peer), true, func(ready context.Context) error {
		if err := l.listening(ready, r.port); err != nil {
			return err
		}
		connect = time.Since(start)
		defer func() { moved = time.Since(start) - connect }()
		return l.write(ready, from, to, r.size, func(b []byte, off uint64) {
			if r.validate {
				copy(b, pattern(int(off%period), len(b)))
			} else {
				gpumem.FillAt(b, r.seed, off)
			}
		})
	})
	if err != nil {
		j.check(false, "%v", err)
		j.words(x.text, 20)
		return fmt.Errorf("%s: %w", r.name, err)
	}
	failed := j.failed
	got := parseReception(x.text)
	j.check(x.res.Status == 0 && got.ended,
		"status %d, saw the end: %v; listens after %.1f s, receives for %.1f s, ends after %.1f s", x.res.Status, got.ended,
		connect.Seconds(), moved.Seconds(), x.took.Seconds())
	j.check(got.total == r.size && got.bytes == r.size, "its last total_received is %d, its frags together are %d, of %d",
		got.total, got.bytes, r.size)
	j.check(got.frags > 0 && got.linear == 0 && len(got.dmabufs) == 1 && got.dmabufs[got.bound],
		"%d frags, all in dmabuf %v, %d linear", got.frags, slices.Sorted(maps.Keys(got.dmabufs)), got.linear)
	j.check(len(got.wrong) == 0, "%d complaints%s", len(got.wrong), some(got.wrong))
	if r.validate {
		out, err := l.sh(ctx, "grep -c '^Validated buffer$' "+stdoutFile)
		if err != nil {
			return err
		}
		n := number(out.Stdout)
		j.check(n == uint64(got.frags), "%d frags validated of %d", n, got.frags)
	} else {
		var back, same uint64 // bytes that ncdevmem printed, and right ones
		err := l.fromGuest(ctx, stdoutFile, func(b []byte) error {
			same += uint64(gpumem.MatchAt(b, r.seed, back))
			back += uint64(len(b))
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s: what came back: %w", r.name, err)
		}
		j.check(back == r.size && same == back, "the peer compared %d bytes that ncdevmem found, %d are as sent, of %d", back,
			same, r.size)
		if r.onGPU {
			n, err := l.audit(r.seed, r.size)
			if err != nil {
				return err
			}
			j.check(n >= many*pageSize/2, "%d bytes of them are in GPU memory still", n)
		}
	}
	j.placed(x.meter.Rx, r.size, r.onGPU)
	if j.failed > failed {
		j.words(x.text, 12)
	}
	return nil
}
