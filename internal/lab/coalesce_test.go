package lab_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/stack"
)

// Transfers from GPU to GPU at an MTU of 1500 keep each byte, with and without coalescing, also on links that
// lose and reorder. Frames are coalesced if coalescing is on, and else not.
//
// Invariant: nic: Cutting a merged GSO packet gives the original frames, byte for byte, with
// complete checksums.
func TestCoalescedTransfersKeepBytes(t *testing.T) {
	testkit.Slow(t)
	for name, links := range map[string]lab.Impairment{
		"clean": {}, "loss": {Loss: 0.01, Seed: 1}, "reorder": {Reorder: 0.02, Seed: 2},
		"both": {Loss: 0.01, Reorder: 0.02, Seed: 3},
	} {
		for mode, usecs := range map[string]int{"merged": 0, "held": 500, "apart": 500} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				testkit.LeavesNothing(t)
				sendGPU(t, links, mode != "apart", usecs)
			})
		}
	}
}

func sendGPU(t *testing.T, links lab.Impairment, on bool, usecs int) {
	const size, pool, queue, port = 2 << 20, 4 << 20, 1, 7
	d := lab.Uniform(2, lab.NIC{Model: lab.Virtio, QueuePairs: queue + 1,
		NICOptions: lab.NICOptions{MTU: 1500, RSCUsecs: usecs}}, pool)
	d.Impair(links)
	w := open(t, d, lab.Options{})
	nic := w.Port(1).NIC()
	nic.SetCoalescing(on)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	var stacks [2]*stack.Stack
	for i := range stacks {
		n, err := w.Port(i).InProcess(driver.Options{QueuePairs: queue + 1})
		testkit.OK(t, err)
		stacks[i], err = stack.New(n, n.Control(), stack.Options{NoGSO: true, RACK: links.Lossy(),
			Addresses: []netip.Prefix{w.Port(i).Addr4}})
		testkit.OK(t, err)
		defer func() { testkit.OK(t, stacks[i].Close()) }()
	}
	a, b := stacks[0], stacks[1]
	want := make([]byte, size)
	rnd := rand.NewChaCha8([32]byte{1})
	_, _ = rnd.Read(want)
	_, err := w.Port(0).GPU().File.WriteAt(want, 0)
	testkit.OK(t, err)
	source, err := a.Register(w.Port(0).GPU().ID(), 0, size)
	testkit.OK(t, err)
	tx, err := a.BindTX(source)
	testkit.OK(t, err)
	into, err := b.Register(w.Port(1).GPU().ID(), 0, pool)
	testkit.OK(t, err)
	_, err = b.BindRX(into, queue)
	testkit.OK(t, err)
	addr := netip.AddrPortFrom(w.Port(1).Addr4.Addr(), port)
	_, err = b.AddFlow(devmem.Flow{Dst: addr, Queue: queue})
	testkit.OK(t, err)

	l, err := b.Listen(addr)
	testkit.OK(t, err)
	sent := make(chan error, 1)
	go func() {
		c, err := a.Dial(ctx, netip.AddrPort{}, addr)
		if err == nil {
			c.SetStallLimit(time.Minute)
			_, err = c.SendDevmem(tx.ID(), []devmem.Range{{Len: size}})
			err = errors.Join(err, c.CloseWrite())
		}
		sent <- err
	}()
	c, err := l.AcceptConn()
	testkit.OK(t, err)
	testkit.OK(t, l.Close())
	c.SetStallLimit(time.Minute)
	var got []byte
	frags, linear := make([]devmem.Frag, 256), make([]byte, 64<<10)
	for len(got) < size {
		_, n, _, err := c.RecvDevmem(frags, linear, 0)
		testkit.OK(t, err)
		var tokens []devmem.TokenRange
		pos := 0
		for _, f := range frags[:n] {
			if f.Kind != devmem.Dmabuf {
				got = append(got, linear[pos:pos+int(f.Size)]...)
				pos += int(f.Size)
				continue
			}
			part := make([]byte, f.Size)
			_, err := w.Port(1).GPU().File.ReadAt(part, int64(f.Off))
			testkit.OK(t, err)
			got = append(got, part...)
			tokens = append(tokens, devmem.TokenRange{Start: f.Token, Count: 1})
		}
		for len(tokens) > 0 {
			k := min(len(tokens), devmem.MaxTokenRanges)
			_, err := c.DontNeed(tokens[:k])
			testkit.OK(t, err)
			tokens = tokens[k:]
		}
	}
	testkit.OK(t, <-sent)
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes came, and they are others", len(got))
	}
	frames, packets := nic.Coalesced()
	if on != (frames > 0) || on && frames < 2*packets {
		t.Errorf("%d frames came as %d packets", frames, packets)
	}
	rx, _ := nic.QueueCounters(queue)
	t.Logf("%d frames, of which %d came as %d packets", rx.Packets, frames, packets)
}
