package ncdevmem

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

type sending struct {
	name  string
	v6    bool
	port  uint16
	chunk int  // -z: most bytes of a piece of a sendmsg; 0: no -z
	plain bool // the sender is netcat
	onGPU bool // ncdevmem's buffer is the GPU's memory; without effect if plain is set
}

func (s *sending) command(l *bench, guest, peer netip.Addr) string {
	c := ""
	if s.onGPU {
		c = l.onGPU()
	}
	if s.plain { // the meter needs the sender's port: here the only one of the range
		c += fmt.Sprintf("r=/proc/sys/net/ipv4/ip_local_port_range; old=$(cat $r); echo %d %d >$r; trap 'echo $old >$r' "+
			"EXIT; nc %v %d", s.port, s.port, peer, s.port)
	} else {
		c += fmt.Sprintf("exec ncdevmem -f eth0 -s %v -c %v -p %d", peer, guest, s.port) // with -c it sends from -p
	}
	if s.chunk > 0 {
		c += fmt.Sprintf(" -z %d", s.chunk)
	}
	return c + " </data 2>" + stderrFile
}

type sender struct {
	ran
	got, same uint64 // bytes that the peer read, and bytes of reads without a wrong byte
}

// attempts is how often send tries at most, on a machine that is too busy for ncdevmem's patience.
const attempts = 5

// patience is how long ncdevmem waits for a completion (ncdevmem.c, waittime_ms).
const patience = 500 * time.Millisecond

func (l *bench) send(ctx context.Context, j *judge, s sending) error {
	size := uint64(len(l.lines))
	j.begin(fmt.Sprintf("%s: %d MiB", s.name, size>>20))
	ctx, cancel := context.WithTimeout(ctx, caseLimit)
	defer cancel()
	var x sender
	for i := 1; ; i++ {
		before := l.waits()
		var err error
		if x, err = l.sendOnce(ctx, s); err != nil {
			j.check(false, "%v", err)
			j.words(x.text, 20)
			return fmt.Errorf("%s: %w", s.name, err)
		}
		// A completion counts as late, not lost, if the waits of all threads add up to patience or more.
		busy := l.waits().together(before)
		if x.res.Status == 0 || i == attempts || !strings.Contains(x.text, "did not receive tx completion") {
			break
		}
		fmt.Fprintf(j.out, "note ncdevmem gave up after %v, and threads of QEMU and of ours waited %v for a CPU\n",
			patience, busy.Round(time.Millisecond))
		if busy < patience {
			break
		}
		s.port += 100
	}
	failed := j.failed
	if s.plain {
		j.check(x.res.Status == 0, "status %d; %.1f s", x.res.Status, x.took.Seconds())
	} else {
		t, lines := parseTransmission(x.text), uint64(countLines(len(l.lines)))
		j.check(x.res.Status == 0 && t.ended && len(t.wrong) == 0, "status %d, saw the end: %v, %d complaints%s; %.1f s",
			x.res.Status, t.ended, len(t.wrong), some(t.wrong), x.took.Seconds())
		j.check(t.calls == lines && t.completed == lines && t.bytes == size,
			"%d bytes by %d calls, %d of them complete, of %d", t.bytes, t.calls, t.completed, lines)
	}
	j.check(x.got == size && x.same == size, "the peer compared %d bytes, %d are right, of %d", x.got, x.same, size)
	j.placed(x.meter.Tx, size, s.onGPU && !s.plain)
	if j.failed > failed {
		j.words(x.text, 12)
	}
	return nil
}

func (l *bench) sendOnce(ctx context.Context, s sending) (x sender, err error) {
	guest, peer := addrs(s.v6)
	from, to := netip.AddrPortFrom(guest, s.port), netip.AddrPortFrom(peer, s.port)
	in, err := l.listen(to)
	if err != nil {
		return x, err
	}
	defer in.Close()
	x.ran, err = l.beside(ctx, from, to, s.command(l, guest, peer), false, func(ready context.Context) error {
		return read(ready, in, func(b []byte) error {
			n := uint64(len(b))
			if x.got+n > uint64(len(l.lines)) {
				return fmt.Errorf("more than %d bytes", len(l.lines))
			}
			if bytes.Equal(b, l.lines[x.got:x.got+n]) {
				x.same += n
			}
			x.got += n
			return nil
		})
	})
	return x, err
}
