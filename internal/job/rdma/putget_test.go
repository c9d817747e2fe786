package rdma

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labfile"
	"vnic.dev/vnic/internal/lab/labtest"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func options(t *testing.T, op string, size uint64) Options {
	o := Defaults()
	o.InProc, o.Op, o.Size, o.Seed, o.GPUMemory, o.Log = true, op, size, 3, 64<<20, labtest.Log(t)
	return o
}

func do(t *testing.T, o *Options) (*Report, error) {
	t.Helper()
	testkit.LeavesNothing(t)
	testkit.OK(t, o.Complete())
	return Do(t.Context(), o)
}

// Invariant: vnic rdma: every byte arrives where put or get was to write it, and the NICs at both
// ends have counted exactly these bytes as payload, in the right kind of memory, apart from bytes
// sent again.
func TestPutAndGet(t *testing.T) {
	for _, c := range []struct {
		what string
		op   string
		size uint64
		set  func(o *Options)
		path int
	}{
		{"put", Put, 5<<20 + 7, func(*Options) {}, 1024},
		{"get", Get, 5<<20 + 7, func(*Options) {}, 1024},
		{"a byte", Put, 1, func(o *Options) { o.QPs = 3 }, 1024},
		{"large packets, IPv6", Get, 3 << 20, func(o *Options) { o.MTU, o.Family, o.QPs = 9000, 6, 4 }, 4096},
		{"small packets", Put, 1 << 20, func(o *Options) { o.PathMTU, o.Block, o.Depth = 256, 777, 64 }, 256},
		{"loss", Put, 3 << 20, func(o *Options) { o.Loss, o.QPs = 0.01, 2 }, 1024},
		{"loss of answers", Get, 3 << 20, func(o *Options) { o.Loss, o.QPs = 0.01, 2 }, 1024},
	} {
		t.Run(c.what, func(t *testing.T) {
			o := options(t, c.op, c.size)
			o.MRs, o.Rounds = []string{GPU, RAM}, 2
			c.set(&o)
			var calls int
			o.Progress = func(_ string, done, total uint64) {
				if done > total {
					t.Errorf("%d of %d bytes", done, total)
				}
				calls++
			}
			rep, err := do(t, &o)
			testkit.OK(t, err)
			testkit.Equal(t, "runs", len(rep.Runs), 2)
			for _, r := range rep.Runs {
				if !r.Verified || r.Bytes != 2*c.size || r.PathMTU != c.path || r.SHA256 != r.SourceSHA256 || len(r.SHA256) != 64 {
					t.Errorf("%+v", r)
				}
				for _, e := range []End{r.Requester, r.Responder} {
					// on a very busy machine an answer may come after its timeout
					if e.RequestPackets == 0 || o.Loss == 0 && r.Requester.Timeouts == 0 &&
						(e.Again > 0 || e.AgainPackets > 0 || e.Sequence > 0) {
						t.Errorf("%+v", e)
					}
				}
			}
			if o.Loss > 0 && rep.Runs[0].Requester.AgainPackets == 0 {
				t.Error("nothing was sent again")
			}
			if calls < 4 {
				t.Errorf("progress was reported %d times", calls)
			}
			var table strings.Builder
			testkit.OK(t, rep.Table(&table))
			if !strings.Contains(table.String(), "match, in all rounds") {
				t.Error(table.String())
			}
		})
	}
}

// Data larger than the RAM buffer is moved in steps.
func TestSteps(t *testing.T) {
	o := options(t, Put, 19<<20+5)
	o.MRs = []string{RAM}
	rep, err := do(t, &o)
	testkit.OK(t, err)
	if r := &rep.Runs[0]; r.Responder.Host != o.Size || r.Responder.Device > 0 || !r.Verified {
		t.Errorf("%+v", r)
	}
}

// The payload of a NIC without peer-to-peer is bounced by host memory.
func TestWithoutPeerToPeer(t *testing.T) {
	for _, op := range []string{Put, Get} {
		o := options(t, op, 3<<20)
		testkit.OK(t, o.P2P.Set("off=1"))
		rep, err := do(t, &o)
		testkit.OK(t, err)
		r := &rep.Runs[0]
		if r.Responder.Device > 0 || r.Responder.Bounced != o.Size || r.Requester.Device != o.Size || r.Requester.Host > 0 {
			t.Errorf("%s: %+v", op, r)
		}
	}
}

// A byte that changes at either end is found.
func TestChangedByteIsFound(t *testing.T) {
	for _, c := range []struct {
		guest int
		says  string
	}{
		{1, "round 2: byte 1234567 at guest guest1 is not what guest guest0 had"},
		{0, "round 2: the memory of guest guest0, which is the source, has changed"},
	} {
		o := options(t, Put, 3<<20)
		o.Rounds = 3
		o.moved = func(s *session.Set, _ *Run, round int) {
			if round != 1 {
				return
			}
			testkit.OK(t, s.Nodes[c.guest].Fill(t.Context(), 1234567, 1, func(b []byte, _ uint64) { b[0] ^= 0x80 }))
		}
		rep, err := do(t, &o)
		testkit.ErrorIs(t, err, ErrProof)
		testkit.ErrorSays(t, err, c.says)
		var table strings.Builder
		testkit.OK(t, rep.Table(&table))
		if rep.Runs[0].Verified || !strings.Contains(table.String(), "WRONG") {
			t.Error(table.String())
		}
	}
}

func TestWrongCounters(t *testing.T) {
	const n = 1000
	for _, c := range []struct {
		memory string
		e      End
		says   string // "": the counters are right
	}{
		{GPU, End{P2P: true, Device: n}, ""},
		{GPU, End{P2P: true, Device: n + 7, Again: 7}, ""},
		{GPU, End{Host: n, Bounced: n}, ""},
		{RAM, End{P2P: true, Host: n}, ""},
		{GPU, End{P2P: true, Device: n - 1}, "999 bytes of payload, without 0 that were moved again, and not 1000"},
		{GPU, End{P2P: true, Device: n + 1}, "1001 bytes of payload"},
		{GPU, End{P2P: true, Device: n - 1, Host: 1}, "1 bytes lay in host memory"},
		{GPU, End{P2P: true, Device: n - 1, GPUFile: 1}, "1 in GPU memory that is not registered"},
		{GPU, End{Device: 1, Host: n - 1, Bounced: n - 1}, "without peer-to-peer 1 bytes lay in device memory"},
		{GPU, End{Host: n, Bounced: n - 1}, "999 of 1000 were bounced"},
		{RAM, End{P2P: true, Host: n - 1, Device: 1}, "1 bytes lay in device memory"},
		{RAM, End{P2P: true, Host: n, Bounced: 1}, "1 were bounced"},
	} {
		says := fmt.Sprint(errors.Join(c.e.wrong(c.memory, n)...))
		if c.says == "" && says != "<nil>" || !strings.Contains(says, c.says) {
			t.Errorf("%s: %+v: %q", c.memory, c.e, says)
		}
	}
	rep := Report{Size: n, Rounds: 1, Runs: []Run{{Memory: GPU, Rounds: 1, Bytes: n - 1}}}
	testkit.ErrorSays(t, rep.check(), "--mr gpu: 999 bytes of 1000")
}

// In a lab file rdma uses the first two guests, and of each the first NIC and the GPU that it may address.
func TestLab(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lab.yaml")
	testkit.OK(t, os.WriteFile(path, []byte(`guests:
  a:
    sockets: [{name: s0, p2p: any}]
    nics: [{name: nic0, below: s0, gpus: [gpu1], mtu: 4200}, {name: nic1, below: s0, gpus: [gpu0]}]
    gpus: [{name: gpu0, below: s0, memory: 32M}, {name: gpu1, below: s0, memory: 64M}]
  b:
    sockets: [{name: s0, p2p: none}]
    nics: [{name: nic0, below: s0, mtu: 9000}]
    gpus: [{name: gpu0, below: s0, memory: 64M}]
  c:
    nics: [{name: nic0}]
`), 0o600))
	o := options(t, Get, 40<<20)
	o.Lab = testkit.Must(labfile.Load(path, nil))(t)
	rep, err := do(t, &o)
	testkit.OK(t, err)
	r := &rep.Runs[0]
	testkit.Equal(t, "path MTU", r.PathMTU, 4096)
	if r.Requester.Guest != "a" || r.Responder.Guest != "b" || r.Requester.Device != o.Size ||
		r.Responder.Bounced != o.Size {
		t.Errorf("%+v", r)
	}
}

func TestInterrupted(t *testing.T) {
	testkit.LeavesNothing(t)
	o := options(t, Put, 8<<20)
	o.Rounds = maxRounds
	testkit.OK(t, o.Complete())
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("enough")
	o.moved = func(_ *session.Set, _ *Run, round int) {
		if round == 1 {
			cancel(stop)
		}
	}
	rep, err := Do(ctx, &o)
	testkit.ErrorIs(t, err, stop)
	if rep != nil {
		t.Errorf("%+v", rep)
	}
}

// A path MTU that is too large for the links' MTU, or none of the specification's, is refused.
func TestPathMTU(t *testing.T) {
	for _, c := range []struct {
		mtu, path int
		says      string
	}{
		{1500, 1024, ""}, {1500, 2048, "--path-mtu 2048: on links of MTU 1500"}, {4180, 4096, ""},
		{4179, 4096, "--mtu 4180"}, {1500, 1000, "one of 256, 512"}, {1500, -1, "one of 256"}, {576, 256, ""},
		{0, 1024, ""}, {0, 2048, "--path-mtu 2048: on links of MTU 1500"},
	} {
		o := options(t, Put, 1<<20)
		o.MTU, o.PathMTU = c.mtu, c.path
		err := o.Complete()
		if c.says == "" {
			testkit.OK(t, err)
		} else {
			testkit.ErrorSays(t, err, c.says)
		}
	}
	if overhead+4096 > 9000 || overhead+1024 > 1500 || overhead+256 > lab.MinMTU {
		t.Error("the documentation says otherwise")
	}
}
