package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/transfer"
)

func options(size uint64) Options {
	o := Defaults()
	o.Size, o.GPUMemory, o.Seed, o.InProc = size, 32<<20, 1, true
	o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	return o
}

// do requires that a run with o succeeds and leaves nothing, and that its report is valid by the JSON schema.
func do(t *testing.T, o Options) *Report {
	t.Helper()
	testkit.LeavesNothing(t)
	testkit.OK(t, o.Check())
	rep := testkit.Must(Do(t.Context(), o))(t)
	validReport(t, rep)
	return rep
}

func TestTransferIsProved(t *testing.T) {
	tests := map[string]func(*Options){
		"plain":        func(*Options) {},
		"IPv6":         func(o *Options) { o.Family = 6 },
		"jumbo frames": func(o *Options) { o.MTU = 9000 },
		"least MTU":    func(o *Options) { o.MTU = 576 },
		"largest MTU":  func(o *Options) { o.MTU = 65521 },
		"IPv6, 1280":   func(o *Options) { o.Family, o.MTU = 6, 1280 },
		"one byte":     func(o *Options) { o.Size = 1 },
		"a page, less": func(o *Options) { o.Size = 4095 },
		"a page, more": func(o *Options) { o.Size = 4097 },
		"odd":          func(o *Options) { o.Size = 1<<20 + 12345 },
		"devmem only":  func(o *Options) { o.Modes = o.Modes[:1] },
		"copy only":    func(o *Options) { o.Modes = o.Modes[1:] },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			o := options(2 << 20)
			change(&o)
			rep := do(t, o)
			if len(rep.Runs) != len(o.Modes) || rep.Guest != "inproc" || rep.Accel != "none" || rep.Family != o.Family {
				t.Errorf("%+v", rep)
			}
			for _, r := range rep.Runs {
				device, host := r.Bytes+r.RetransmittedBytes, uint64(0)
				if r.Mode == transfer.Copy {
					device, host = 0, device
				}
				all := Where{Device: device, Host: host}
				if r.Bytes != o.Size || r.TX != all || r.RX != all || !r.SHA256Match || len(r.SHA256) != 64 ||
					r.RetransmittedBytes > again || r.DroppedPackets != 0 {
					t.Errorf("%+v", r)
				}
				if r.GuestCPUSeconds != nil {
					t.Errorf("in-process guests have no CPU time of their own: %v", *r.GuestCPUSeconds)
				}
			}
		})
	}
}

func TestBothModesMoveTheSameWayTwice(t *testing.T) {
	o := options(1 << 20)
	a, b := do(t, o), do(t, o)
	for i := range a.Runs {
		if a.Runs[i].SHA256 != b.Runs[i].SHA256 {
			t.Errorf("%s: same seed, digests %s and %s", a.Runs[i].Mode, a.Runs[i].SHA256, b.Runs[i].SHA256)
		}
	}
	if a.Runs[0].SHA256 == a.Runs[1].SHA256 {
		t.Error("both modes have the same payload: bytes left from one mode could pass for bytes sent in the other")
	}
	o.Seed++
	if c := do(t, o); c.Runs[0].SHA256 == a.Runs[0].SHA256 {
		t.Error("another seed, the same payload")
	}
}

func TestLossIsMadeGood(t *testing.T) {
	testkit.Slow(t)
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			o := options(4 << 20)
			o.Loss, o.Reorder, o.Seed = 0.01, 0.01, seed
			for _, r := range do(t, o).Runs {
				if r.RetransmittedBytes == 0 || r.DroppedPackets == 0 {
					t.Errorf("%s: %d bytes sent again, %d packets dropped: was the link good?", r.Mode, r.RetransmittedBytes,
						r.DroppedPackets)
				}
				if sent := r.TX.Device + r.TX.Host; sent < r.Bytes+r.RetransmittedBytes {
					t.Errorf("%s: %d sent, of which %d again, of %d", r.Mode, sent, r.RetransmittedBytes, r.Bytes)
				}
			}
		})
	}
}

func TestRoundsExceedGPUMemory(t *testing.T) {
	o := options(60 << 20)
	var steps []string
	o.Stage = func(s Step) { steps = append(steps, fmt.Sprintf("%s %s %d/%d", s.Stage, s.Mode, s.Round, s.Rounds)) }
	var last, back uint64
	o.Progress = func(_ string, done, total uint64) {
		if done > total || total != o.Size {
			t.Errorf("%d of %d", done, total)
		}
		if done < last {
			back++ // in the second mode done counts from 0 again
		}
		last = done
	}
	for _, r := range do(t, o).Runs {
		if r.Rounds != 3 || r.Bytes != o.Size || strings.Count(r.SHA256, ",") != 2 {
			t.Errorf("%+v", r)
		}
	}
	if back != 1 {
		t.Errorf("progress went back %d times", back)
	}
	want := []string{"fetch  0/0", "gpu-memory  0/0", "boot  0/0", "setup  0/0"}
	for _, mode := range o.Modes {
		for i := 1; i <= 3; i++ {
			for _, s := range Stages[4:] {
				want = append(want, fmt.Sprintf("%s %s %d/3", s, mode, i))
			}
		}
	}
	if !slices.Equal(steps, want) {
		t.Errorf("stages %q", steps)
	}
}

// Invariant: vnic run: Counters and audit find payload exactly where it was.
func TestAuditFindsPayloadOnlyWhereItWas(t *testing.T) {
	testkit.Slow(t)
	o := options(2 << 20)
	o.Audit = true
	rep := do(t, o)
	direct, copied := rep.Runs[0].Audit, rep.Runs[1].Audit
	if direct.HitsSender != 0 || direct.HitsReceiver != 0 || direct.BytesScanned < 4<<20 {
		t.Errorf("devmem: %+v", direct)
	}
	if copied.HitsSender == 0 || copied.HitsReceiver == 0 || copied.BytesFound < 1<<20 {
		t.Errorf("copy: %+v", copied)
	}
}

// Without peer-to-peer the same bytes arrive as with it, bounced through memory of this process.
//
// Invariant: vnic run: Counters and audit find payload exactly where it was.
func TestWithoutP2PPayloadIsInHostMemory(t *testing.T) {
	testkit.Slow(t)
	o := options(2 << 20)
	o.Modes = o.Modes[:1]
	on := do(t, o).Runs[0]
	o.P2P, o.Audit = false, true
	off := do(t, o).Runs[0]
	if off.SHA256 != on.SHA256 {
		t.Errorf("digests %s with P2P, %s without", on.SHA256, off.SHA256)
	}
	if off.TX.Device != 0 || off.RX.Device != 0 || off.TX.Host < o.Size || off.RX.Host < o.Size ||
		off.BouncedBytes < 2*o.Size {
		t.Errorf("%+v", off)
	}
	if off.Audit.HitsSender+off.Audit.HitsReceiver != 0 {
		t.Errorf("bounced payload is the host's, not the guest's: %+v", off.Audit)
	}
}

// A transfer whose link is cut ends with an error that shows both TCP states.
func TestStallShowsBothTCPStates(t *testing.T) {
	testkit.Slow(t)
	testkit.LeavesNothing(t)
	for _, mode := range []string{transfer.Devmem, transfer.Copy} {
		o := options(16 << 20)
		o.Modes = []string{mode}
		var l *runner
		o.hook = func(x *runner) { l = x }
		o.Stage = func(s Step) {
			if s.Stage == "transfer" {
				l.streams[0].opt.StallSecs = 1 // the stages before may take longer
				testkit.NoError(t, l.Lab.Switch().Detach(l.streams[0].ends[1].nic().Link()))
			}
		}
		_, err := Do(t.Context(), o)
		var stalled *stallError
		if !errors.As(err, &stalled) || stalled.done != 0 || stalled.total != o.Size {
			t.Fatalf("mode %s: %v", mode, err)
		}
		testkit.ErrorSays(t, err, "mode "+mode, "no progress for 1s", "\nsender A:   ESTABLISHED",
			"\nreceiver B: ESTABLISHED")
	}
	do(t, options(1<<20))
}

func TestConnectionThatCannotBeMade(t *testing.T) {
	testkit.LeavesNothing(t)
	o := options(1 << 20)
	var l *runner
	o.hook = func(x *runner) { l = x }
	o.Stage = func(s Step) {
		if s.Stage == "connect" {
			l.streams[0].opt.StallSecs = 1
			_ = l.Lab.Switch().Detach(l.streams[0].ends[1].nic().Link())
		}
	}
	_, err := Do(t.Context(), o)
	testkit.ErrorSays(t, err, "connect: guest ", "not done after 1s")
}

// interrupted runs with o as changed by change, which makes a callback of o call interrupt. It requires no report, the
// interruption's error alone, and that nothing is left.
func interrupted(t *testing.T, o Options, change func(o *Options, interrupt func())) {
	testkit.LeavesNothing(t)
	gone := errors.New("gone away")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	change(&o, func() { cancel(gone) })
	if rep, err := Do(ctx, o); rep != nil || err != gone {
		t.Errorf("report %v, error %v", rep, err)
	}
}

// Invariant: vnic run: An interruption at any stage ends the run with the interruption as its
// error, and leaves nothing.
func TestInterruptionAtEachStageWinsAndLeavesNothing(t *testing.T) {
	for _, stage := range Stages {
		t.Run(stage, func(t *testing.T) {
			interrupted(t, options(1<<20), func(o *Options, interrupt func()) {
				o.Pause = stage
				o.Stage = func(s Step) {
					if s.Stage == stage {
						interrupt()
					}
				}
			})
		})
	}
}

func TestInterruptionInMidTransfer(t *testing.T) {
	for _, mode := range []string{transfer.Devmem, transfer.Copy} {
		t.Run(mode, func(t *testing.T) {
			interrupted(t, options(1<<39), func(o *Options, interrupt func()) {
				o.Modes = []string{mode}
				o.Progress = func(_ string, done, _ uint64) {
					if done > 0 {
						interrupt()
					}
				}
			})
		})
	}
}

func TestNoRoomForGPUMemoryIsSomethingMissing(t *testing.T) {
	testkit.LeavesNothing(t)
	o := options(1 << 20)
	o.GPUMemory = 1 << 50
	_, err := Do(t.Context(), o)
	if err == nil || !strings.HasPrefix(err.Error(), "--gpu-memory 1024T: ") ||
		!strings.Contains(err.Error(), "free some") {
		t.Errorf("%v", err)
	}
}

func TestKeepKeepsCounters(t *testing.T) {
	o := options(1 << 20)
	o.Keep, o.KeepDir = true, t.TempDir()
	var notes []string
	o.Note = func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	do(t, o)
	b := testkit.Must(os.ReadFile(o.KeepDir + "/counters.json"))(t)
	if !strings.Contains(string(b), `"DeviceBytes": 1048576`) || len(notes) != 1 ||
		!strings.Contains(notes[0], "counters.json") {
		t.Errorf("%q %s", notes, b)
	}
}

// counters.json has both guests' NICs of all rails.
func TestKeepKeepsCountersOfRails(t *testing.T) {
	o := railsOptions(t, 2, "")
	o.Keep, o.KeepDir, o.Modes = true, t.TempDir(), []string{transfer.Devmem}
	do(t, o)
	var all map[string]json.RawMessage
	testkit.OK(t, json.Unmarshal(testkit.Must(os.ReadFile(o.KeepDir+"/counters.json"))(t), &all))
	testkit.Equal(t, "NICs", fmt.Sprint(slices.Sorted(maps.Keys(all))), "[a.nic0 a.nic1 b.nic0 b.nic1]")
}
