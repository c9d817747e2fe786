package allreduce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labtest"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/transfer"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func options(t *testing.T, n int, counts ...uint64) Options {
	o := Defaults()
	o.InProc, o.Guests, o.Counts, o.Seed, o.GPUMemory = true, n, counts, 7, 64<<20
	o.Iters, o.Warmup, o.Timeout = 1, 0, testkit.Patience
	o.Log = labtest.Log(t)
	return o
}

func do(t *testing.T, o *Options) (*Report, error) {
	t.Helper()
	testkit.LeavesNothing(t)
	testkit.OK(t, o.Complete())
	return Do(t.Context(), o)
}

// Invariant: vnic allreduce: every element of every rank equals the sum that scalar code computes
// in the order of the ring; each rank sends exactly the bytes that the operation requires, from
// device memory to device memory.
func TestRings(t *testing.T) {
	testkit.Slow(t)
	for _, n := range []int{1, 2, 3, 4, 8} {
		for name, typ := range Types {
			t.Run(fmt.Sprint(n, name), func(t *testing.T) {
				counts := []uint64{1, uint64(n + 1), 1e5 + 1}
				switch {
				case testing.Short(): // mainly with -race, where more elements find nothing more
					counts[2] = 1e4 + 1
				case testkit.Long() || typ == devmem.Float32:
					counts[2] = 1e6 + 1
				}
				if n > 1 {
					counts = append(counts, uint64(n-1))
				}
				o := options(t, n, counts...)
				o.Type = typ
				rep, err := do(t, &o)
				testkit.OK(t, err)
				m := &rep.Modes[0]
				testkit.Equal(t, "rows", len(m.Rows), len(counts))
				for _, row := range m.Rows {
					if *row.OutOfPlace.Wrong != 0 || *row.InPlace.Wrong != 0 {
						t.Errorf("%d elements: %+v", row.Count, row)
					}
				}
				for i, x := range m.Ranks {
					testkit.Equal(t, fmt.Sprintf("rank %d: device memory", i), x.Out.Device-x.Out.Retransmitted, x.Expected.Out)
					testkit.Equal(t, fmt.Sprintf("rank %d: in host memory", i), x.Out.Host+x.In.Host+x.Linear, 0)
				}
				if share := m.Ranks[0].Expected.Out; n == 4 && share == 0 {
					t.Error("nothing was to be passed on")
				}
			})
		}
	}
}

// In an all-reduce, if n ranks divide the number of elements, each rank sends 2(n-1)/n of the bytes.
func TestShareThatIsPassedOn(t *testing.T) {
	for _, n := range []int{2, 3, 4, 8} {
		x := expected{op: transfer.AllReduce, t: devmem.Float32, ranks: n, count: 840, parts: 1}
		for rank := range n {
			testkit.Equal(t, "bytes", x.passes(rank), uint64(2*(n-1)*840*4/n))
		}
	}
}

func TestOperations(t *testing.T) {
	for _, op := range Ops {
		t.Run(op, func(t *testing.T) {
			o := options(t, 3, 1, 4, 100_001)
			o.Op, o.Root, o.Modes, o.Type = op, 1, []string{transfer.Devmem, transfer.Copy}, devmem.BFloat16
			rep, err := do(t, &o)
			testkit.OK(t, err)
			for _, x := range rep.Modes[1].Ranks {
				if x.Out.Device+x.In.Device > 0 || x.Out.Host != x.Expected.Out {
					t.Errorf("mode copy: %+v", x)
				}
			}
		})
	}
}

// Payload that a rank without peer-to-peer sends is in host memory; payload of the other ranks is in device memory.
func TestRankWithoutPeerToPeer(t *testing.T) {
	o := options(t, 3, 10_001)
	testkit.OK(t, o.P2P.Set("off=1"))
	rep, err := do(t, &o)
	testkit.OK(t, err)
	for i, x := range rep.Modes[0].Ranks {
		want := session.Where{Place: session.Place{Device: x.Expected.Out}}
		if i == 1 {
			want = session.Where{Place: session.Place{Host: x.Expected.Out, Bounced: x.Expected.Out}}
		}
		testkit.Equal(t, fmt.Sprint("out of rank ", i), x.Out, want)
	}
}

// With several channels, each a ring with a part of the elements, results and payload are right.
func TestChannels(t *testing.T) {
	for _, op := range []string{transfer.AllReduce, transfer.Broadcast} {
		o := options(t, 3, 1, 2, 4, 100_001)
		o.Op, o.Channels = op, 3
		rep, err := do(t, &o)
		testkit.OK(t, err)
		for i, x := range rep.Modes[0].Ranks {
			if x.Out.Host+x.In.Host > 0 || x.Out.Device-x.Out.Retransmitted != x.Expected.Out {
				t.Errorf("%s, rank %d: %+v", op, i, x)
			}
		}
	}
}

func TestLossyLinks(t *testing.T) {
	testkit.Slow(t)
	o := options(t, 3, 300_001)
	o.Loss, o.Impairment.Seed = 0.01, 3
	rep, err := do(t, &o)
	testkit.OK(t, err)
	again := uint64(0)
	for _, x := range rep.Modes[0].Ranks {
		again += x.Out.Retransmitted
	}
	if again == 0 {
		t.Error("nothing was sent again on links that lose")
	}
}

// An element to which another value was added is found.
func TestWrongElementIsFound(t *testing.T) {
	o := options(t, 2, 1000)
	testkit.OK(t, o.Complete())
	place := o.layout(2)
	o.tamper = func(s *session.Set) {
		g := s.Nodes[1]
		where := place.data.Off + place.to + 4*500
		var old []byte
		testkit.OK(t, g.View(t.Context(), where, 4, func(b []byte) error {
			old = bytes.Clone(b)
			return nil
		}))
		sum := make([]byte, 4)
		put(sum, devmem.Float32, plus(devmem.Float32, le(old), value(devmem.Float32, 1, 1, 1)))
		testkit.OK(t, g.Write(where, sum))
	}
	rep, err := do(t, &o)
	testkit.ErrorIs(t, err, ErrProof)
	testkit.Equal(t, "wrong elements: one of each half", rep.Modes[0].Wrong, 2)
	testkit.ErrorSays(t, err, "2 elements are wrong")
}

func le(b []byte) uint32 {
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
}

// If a rank leaves between two operations, the next operation's error names that rank and the step.
func TestKilledRank(t *testing.T) {
	o := options(t, 4, 1000, 2000)
	var set *session.Set
	o.Hook = func(s *session.Set) { set = s }
	o.Progress = func(_ string, done, _ uint64) {
		if done == 1 {
			testkit.OK(t, transfer.Leave(t.Context(), set.Nodes[2].Ops))
		}
	}
	_, err := do(t, &o)
	testkit.ErrorSays(t, err, "2000 elements", "rank 3 (guest3)", "rank 2: all-reduce, step 1 of 6", "in no ring")
}

func TestInterruption(t *testing.T) {
	o := options(t, 2, 1000, 1000, 1000)
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	o.Progress = func(_ string, done, _ uint64) {
		if done == 1 {
			cancel(enough)
		}
	}
	testkit.LeavesNothing(t)
	testkit.OK(t, o.Complete())
	_, err := Do(ctx, &o)
	testkit.ErrorIs(t, err, enough)
}

// Each of n-1 additions rounds by at most half an ulp of the largest partial sum.
func TestReferenceIsNearTheSum(t *testing.T) {
	for _, n := range []int{2, 3, 8} {
		x := expected{op: transfer.AllReduce, t: devmem.Float32, ranks: n, count: 10_000, seed: 5, parts: 1}
		for i := range x.count {
			sum, most := 0.0, 0.0
			for rank := range n {
				v := float64(math.Float32frombits(value(x.t, x.seed, rank, i)))
				sum, most = sum+v, most+math.Abs(v)
			}
			ulp := float64(math.Nextafter32(float32(most), math.MaxFloat32) - float32(most))
			if got := float64(math.Float32frombits(x.element(i))); math.Abs(got-sum) > float64(n)*ulp {
				t.Fatalf("%d ranks, element %d: %v, and in 64 bits %v", n, i, got, sum)
			}
		}
	}
}

// Lines that do not begin with # have the columns of nccl-tests.
func TestTable(t *testing.T) {
	zero, two := uint64(0), uint64(2)
	rep := &Report{Op: transfer.AllReduce, Type: "float", Ranks: 2, Root: -1, Info: session.Info{Guest: "inproc"},
		Modes: []Mode{{Mode: transfer.Devmem, Bus: 0.5, Wrong: 2, Ranks: []Rank{{P2P: true}, {Rank: 1}},
			Rows: []Row{{Bytes: 8, Count: 2, OutOfPlace: Half{12.5, 0.25, 0.5, &zero}, InPlace: Half{1234567.8, 0, 0, &two}},
				{Bytes: 16 << 30, Count: 4 << 30, OutOfPlace: Half{99999.4, 1, 2, nil}}}}}}
	var b strings.Builder
	testkit.OK(t, rep.Table(&b))
	var rows [][]string
	for line := range strings.Lines(b.String()) {
		if !strings.HasPrefix(line, "#") {
			rows = append(rows, strings.Fields(line))
		}
	}
	want := [][]string{
		{"8", "2", "float", "sum", "-1", "12.50", "0.25", "0.50", "0", "1234568", "0.00", "0.00", "2"},
		{"17179869184", "4294967296", "float", "sum", "-1", "99999.4", "1.00", "2.00", "N/A", "0.00", "0.00", "0.00", "N/A"},
	}
	testkit.Equal(t, "rows", fmt.Sprint(rows), fmt.Sprint(want))
	if !strings.HasSuffix(b.String(), "# Out of bounds values : 2 FAILED\n# Avg bus bandwidth    : 0.5\n#\n") {
		t.Errorf("the end is not nccl-tests':\n%s", b.String())
	}
}

func TestRowsGrowByTheFactor(t *testing.T) {
	for _, c := range []struct {
		min, max, factor uint64
		want             string
	}{{8, 130, 4, "[2 8 32]"}, {8, 8, 0, "[2]"}, {8 << 30, 16 << 30, 1 << 40, "[2147483648]"}} {
		o := options(t, 2)
		o.Min, o.Max, o.Factor = c.min, c.max, c.factor
		testkit.OK(t, o.rows())
		testkit.Equal(t, fmt.Sprintf("rows of %+v", c), fmt.Sprint(o.Counts), c.want)
	}
}

// Bytes that were sent again do not count.
func TestMetersAgainstTheProof(t *testing.T) {
	good := Rank{P2P: true, Out: session.Where{Place: session.Place{Device: 110}, Retransmitted: 10}}
	good.In.Device, good.Expected.Out, good.Expected.In = 50, 100, 50
	for says, c := range map[string]struct {
		mode string
		set  func(*Rank)
	}{
		"": {transfer.Devmem, func(*Rank) {}},
		"99 bytes out, without those that were sent again, and not 100": {transfer.Devmem,
			func(x *Rank) { x.Out.Retransmitted++ }},
		"51 bytes in, without those that were sent again, and not 50": {transfer.Devmem, func(x *Rank) { x.In.Device++ }},
		"payload in host memory: 0 bytes out, 1 in": {transfer.Devmem,
			func(x *Rank) { x.In.Device, x.In.Host = 49, 1 }},
		"without peer-to-peer payload in device memory: 110 bytes out, 50 in": {transfer.Devmem,
			func(x *Rank) { x.P2P = false }},
		"payload in device memory: 110 bytes out, 50 in": {transfer.Copy, func(*Rank) {}},
	} {
		x := good
		c.set(&x)
		testkit.Equal(t, "finding", x.wrongCount(c.mode), says)
	}
}

func TestMistakes(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(*Options)
		says string
	}{
		"operation":        {func(o *Options) { o.Op = "scan" }, "--op scan: all_reduce, "},
		"type":             {func(o *Options) { o.Type = 0 }, "--dtype: int32, float or bfloat16"},
		"mode":             {func(o *Options) { o.Modes = []string{"rdma"} }, "--mode rdma"},
		"no guest":         {func(o *Options) { o.Guests = 0 }, "--guests 0: 1 to 64"},
		"guests":           {func(o *Options) { o.Guests = 65 }, "--guests 65: 1 to 64"},
		"more models":      {func(o *Options) { o.NIC = append(o.NIC, "virtio", "virtio") }, "3 models, and 2 of guests"},
		"model":            {func(o *Options) { o.NIC = []string{"e1000"} }, "--nic e1000"},
		"gve here":         {func(o *Options) { o.NIC = []string{lab.GVE} }, "--nic gve: "},
		"no bytes":         {func(o *Options) { o.Counts, o.Min = nil, 0 }, "--minbytes"},
		"wrong order":      {func(o *Options) { o.Counts, o.Min, o.Max = nil, 64, 32 }, "the smaller one first"},
		"factor":           {func(o *Options) { o.Counts, o.Factor = nil, 1 }, "--stepfactor 1: 2 at least"},
		"rows":             {func(o *Options) { o.Counts = make([]uint64, 65) }, "65 rows: 64 at most"},
		"no elements":      {func(o *Options) { o.Counts = []uint64{0} }, "0 elements"},
		"does not fit":     {func(o *Options) { o.Counts = []uint64{1 << 30} }, "a larger --gpu-memory"},
		"beyond 64 bits":   {func(o *Options) { o.Counts = []uint64{math.MaxUint64} }, "elements: 1 to"},
		"iterations":       {func(o *Options) { o.Iters = 0 }, "--iters 0"},
		"warm-up":          {func(o *Options) { o.Warmup = -1 }, "--warmup-iters -1"},
		"channels":         {func(o *Options) { o.Channels = 16 }, "--channels 16: 1 to 15"},
		"more than queues": {func(o *Options) { o.Channels = 9 }, "pairs of queues"},
		"channels and op":  {func(o *Options) { o.Channels, o.Op = 2, "all_gather" }, "--op all_reduce or broadcast only"},
		"timeout":          {func(o *Options) { o.Timeout = 0 }, "--timeout 0s"},
		"root":             {func(o *Options) { o.Root = 2 }, "--root 2: ranks are 0 to 1"},
		"p2p":              {func(o *Options) { testkit.OK(t, o.P2P.Set("off=2")) }, "--p2p off=2: guests are 0 to 1"},
		"family":           {func(o *Options) { o.Family = 5 }, "--family 5"},
		"memory of a GPU":  {func(o *Options) { o.GPUMemory = 3 << 20 }, "not a power of two"},
		"memory":           {func(o *Options) { o.Memory = 1 << 20 }, "--memory"},
		"modules, no such": {func(o *Options) { o.Fetch.Modules = "x" }, "--modules without --kernel"},
	} {
		o := options(t, 2, 100)
		c.set(&o)
		err := o.Complete()
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var p session.P2P
	for _, s := range []string{"", "off=", "off=x", "off=-1", "1"} {
		if p.Set(s) == nil {
			t.Errorf("--p2p %q is taken", s)
		}
	}
}
