package transfer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/stacktest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/stack"
)

// TestRuleThatGoes removes a transfer's flow rule before or during the transfer. All bytes arrive nevertheless; if the
// rule is removed before, they arrive in host memory.
func TestRuleThatGoes(t *testing.T) {
	w := newWorld(t, options{})
	const size = 6 << 20
	var slots [2]*byte
	for round, name := range []string{"never", "before", "in the middle"} {
		t.Run(name, func(t *testing.T) {
			w := w.in(t)
			send, recv := w.prepares(trial{mode: Devmem, size: size, seed: uint64(round)})
			testkit.OK(t, w.connect(t.Context(), send, recv))
			was := slots
			if slots = [...]*byte{&w.b.node.linear.table[0], &w.b.node.linear.data[0]}; round > 0 && slots != was {
				t.Error("memory for linear bytes was made again")
			}
			s := w.b.node.now
			forget := func() { testkit.NoError(t, w.b.node.dev.DelFlow(s.flow)) }
			if name == "before" {
				forget()
			}
			var rb Result
			errs := start(t.Context(), func(ctx context.Context) (err error) { _, rb, err = w.move(ctx); return err })
			if name == "in the middle" {
				w.arrived(2*size + size/3) // the bytes of the two earlier rounds count, too
				forget()
			}
			testkit.OK(t, <-errs)
			if name != "never" {
				s.flow = 0
			}
			w.check(recv, send.Seed)
			if rb.Bytes != size || name == "never" && rb.Linear != 0 || name == "before" && rb.Linear != size {
				t.Errorf("%+v", rb)
			}
			t.Logf("%d of %d bytes linear", rb.Linear, rb.Bytes)
			w.end()
		})
	}
}

// fakeHost is a guest's DMA memory, GPU memory and engines, for a NIC of stacktest.
type fakeHost struct {
	gpu []byte
	dma []byte
}

func (h *fakeHost) AllocDMA(n int) ([]byte, uint64, error) {
	if n > cap(h.dma)-len(h.dma) {
		return nil, 0, errors.New("no DMA memory left")
	}
	pos := len(h.dma)
	h.dma = h.dma[:pos+n]
	return h.dma[pos : pos+n : pos+n], uint64(pos), nil
}

func (h *fakeHost) RunJob(_ context.Context, j control.Job) (s control.JobStatus, err error) {
	switch j.Op {
	case control.JobFill:
		gpumem.FillAt(h.gpu[j.Off:][:j.Len], j.Seed, j.Stream)
	case control.JobPoison:
		for i := range j.Len {
			h.gpu[j.Off+i] = byte(j.Seed)
		}
	case control.JobGather, control.JobFromGuest, control.JobToGuest:
		src, dst := h.gpu, h.gpu
		if j.Op == control.JobFromGuest {
			src = h.dma
		} else if j.Op == control.JobToGuest {
			dst = h.dma
		}
		for i := range uint64(j.Entries) {
			e := h.dma[j.Table+i*control.JobEntryLen:]
			from, to, n := binary.LittleEndian.Uint64(e), binary.LittleEndian.Uint64(e[8:]), binary.LittleEndian.Uint32(e[16:])
			copy(dst[to:][:n], src[from:][:n])
		}
	default:
		err = fmt.Errorf("no such job: %+v", j)
	}
	return s, err
}

func TestLinearFragments(t *testing.T) {
	for _, head := range []int{1, 100} {
		t.Run(fmt.Sprint(head), func(t *testing.T) {
			na, nb := stacktest.NewPair(stacktest.Options{GPUSize: 16 << 20, LinearHead: head, Seed: 1, Cut: head == 100})
			var guests [2]*guest
			var hosts [2]*fakeHost
			for i, n := range []*stacktest.NIC{na, nb} {
				s := testkit.Must(stack.New(n, n,
					stack.Options{Addresses: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.0.0.%d/24", i+1))}}))(t)
				hosts[i] = &fakeHost{gpu: n.Memory(), dma: make([]byte, 0, 8<<20)}
				node := NewNode(s, hosts[i], hosts[i], nil)
				t.Cleanup(func() { testkit.OK(t, node.Close()) })
				guests[i] = &guest{t: t, node: node, end: node, ram: n.Memory()}
			}
			w := &world{t: t, a: guests[0], b: guests[1]}
			from, to := netip.MustParseAddrPort("10.0.0.1:5000"), netip.MustParseAddrPort("10.0.0.2:5000")
			used := 0
			for round := range uint64(3) {
				const size = 3<<20 + 99
				send := PrepareArgs{Mode: Devmem, Send: true, Off: dataOff, Bytes: 4 << 20, Len: size, Seed: round, Local: from,
					Remote: to}
				recv := PrepareArgs{Mode: Devmem, Off: dataOff, Bytes: 4 << 20, Len: size, Seed: ^round, Local: to,
					Remote:    from,
					PoolBytes: 4 << 20, Queues: []int{2}}
				testkit.OK(t, w.connect(t.Context(), send, recv))
				_, rb, err := w.move(t.Context())
				testkit.OK(t, err)
				w.check(recv, send.Seed)
				if rb.Linear == 0 || rb.Linear == size || rb.Bytes != size {
					t.Errorf("%+v", rb)
				}
				if round > 0 && len(hosts[1].dma) != used {
					t.Errorf("%d bytes of DMA memory, %d after the first transfer", len(hosts[1].dma), used)
				}
				used = len(hosts[1].dma)
				w.finish()
				from, to = netip.AddrPortFrom(from.Addr(), from.Port()+1), netip.AddrPortFrom(to.Addr(), to.Port()+1)
			}
		})
	}
}

func TestTokensGoBackInSeveralCalls(t *testing.T) {
	var tokens devmem.Tokens
	fill := func() {
		for i := range uint32(1000) {
			tokens.Add(3 * i)
			tokens.Add(3*i + 1)
		}
	}
	fill()
	c := &countingConn{}
	if err := tokens.GiveBack(c); err != nil || c.calls != 8 || c.tokens != 2000 {
		t.Errorf("%v, %+v", err, c)
	}
	fill()
	c.lose = 1
	if err := tokens.GiveBack(c); err == nil {
		t.Error("a token that is unknown was not noticed")
	}
}

type countingConn struct {
	devmem.Conn
	calls, tokens, lose int
}

func (c *countingConn) DontNeed(ranges []devmem.TokenRange) (int, error) {
	if len(ranges) > devmem.MaxTokenRanges {
		return 0, errors.New("too many")
	}
	c.calls++
	n := -c.lose
	for _, r := range ranges {
		n += int(r.Count)
	}
	c.tokens += n
	return n, nil
}
