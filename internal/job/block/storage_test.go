package block

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"syscall"
	"testing"

	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/transfer"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestTargets(t *testing.T) {
	const nqn = "nqn.2026-01.org.example:disk0"
	for _, c := range []struct {
		in   string
		want target
		says string
	}{
		{"nvme-tcp://h/" + nqn, target{"nvme-tcp", "h", 4420, nqn, 1}, ""},
		{"nvme-tcp://10.0.0.1:99/" + nqn + "?nsid=7", target{"nvme-tcp", "10.0.0.1", 99, nqn, 7}, ""},
		{"nbd://localhost", target{"nbd", "localhost", 10809, "", 1}, ""},
		{"nbd://[::1]:5/a/b", target{"nbd", "::1", 5, "a/b", 1}, ""},
		{"nvme-tcp://h/", target{}, "no NQN"},
		{"nvme-tcp://h/" + strings.Repeat("x", 224), target{}, "more than 223 bytes"},
		{"nvme-tcp://h/n?nsid=0", target{}, "?nsid=0"},
		{"nvme-tcp://h/n?nsid=4294967295", target{}, "?nsid=4294967295"},
		{"nvme-tcp://h/n?x=1", target{}, "?x=1"},
		{"nbd://h/e?nsid=1", target{}, "?nsid=1"},
		{"nbd://h:0/e", target{}, "port 0"},
		{"nbd://h:65536/e", target{}, "port 65536"},
		{"nbd:///e", target{}, "no host"},
		{"nbds://h/e", target{}, "only nbd:// over TCP"},
		{"nbd+unix:///e?socket=s", target{}, "only nbd:// over TCP"},
		{"iscsi://h/e", target{}, `protocol "iscsi"`},
		{"h:4420", target{}, `"h"`},
		{"nbd://u@h/e", target{}, "neither a user"},
		{"nbd://h/%zz", target{}, "not a URL"},
	} {
		got, err := parseTarget(c.in)
		switch {
		case c.says != "":
			testkit.ErrorSays(t, err, c.in, c.says, "nvme-tcp://HOST")
		case err != nil || got != c.want:
			t.Errorf("%s: %+v, %v", c.in, got, err)
		}
	}
}

// Each aligned 8 bytes are their own offset on the device, wherever a read begins.
func TestNBDKitPattern(t *testing.T) {
	var all [64]byte
	nbdkitPattern(all[:], 1<<20)
	want := []byte{0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 8}
	if !bytes.Equal(all[:16], want) {
		t.Errorf("%x", all[:16])
	}
	for off := range 16 {
		var b [20]byte
		nbdkitPattern(b[:], 1<<20+uint64(off))
		if !bytes.Equal(b[:], all[off:][:20]) {
			t.Errorf("from %d on: %x", off, b)
		}
	}
}

func TestOffsets(t *testing.T) {
	const size = 1 << 20
	for _, c := range []struct {
		offset uint64
		says   string // part of Complete's error; "": none
		device uint64 // bytes of the smallest device that fits
	}{
		{0, "", size}, {1<<40 + 512, "", 1<<40 + 512 + size}, {5 << 40, "", 5<<40 + size}, {1 << 62, "", 1<<62 + size},
		{math.MaxInt64 - size, "", math.MaxInt64}, {math.MaxInt64 - size + 1, "any device may have", 0},
		{math.MaxUint64, "any device may have", 0},
	} {
		o := Defaults()
		o.URL, o.InProc, o.Size, o.Offset = "nbd://localhost/", true, size, c.offset
		if err := o.Complete(); c.says != "" {
			testkit.ErrorSays(t, err, c.says, fmt.Sprint("--offset ", c.offset))
			continue
		} else if err != nil {
			t.Error(err)
			continue
		}
		u := &use{Options: &o, peer: &Peer{text: "disk"}}
		testkit.NoError(t, u.fits(&Device{Bytes: c.device, MaxTransfer: 32 << 20}))
		testkit.ErrorSays(t, u.fits(&Device{Bytes: c.device - 1, MaxTransfer: 32 << 20}),
			fmt.Sprintf("disk: it has %d bytes, and %d from %d on are asked for: --size, --offset", c.device-1, size, c.offset))
	}
}

// A disk of the command's own that does not fit into the available memory is refused.
func TestOffsetBeyondMemory(t *testing.T) {
	o := Defaults()
	o.Offset = 1 << 62
	testkit.OK(t, o.Complete())
	_, err := o.Peer(t.Context())
	testkit.ErrorIs(t, err, syscall.ENOSPC)
	testkit.ErrorSays(t, err, "--size, --offset", "no memory")
}

func TestWrongRuns(t *testing.T) {
	yes, no := true, false
	good := func() Run {
		return Run{Mode: transfer.Devmem, What: Read,
			Moved: session.Moved{Bytes: 100, Verified: &yes, Traffic: session.Traffic{RX: session.Place{Device: 124}}}}
	}
	r := good()
	if wrong := r.wrong(100, true); wrong != nil {
		t.Error(wrong)
	}
	for name, c := range map[string]struct {
		p2p    bool
		change func(r *Run)
	}{
		"wrong byte":             {true, func(r *Run) { r.Verified = &no }},
		"operation failed":       {true, func(r *Run) { r.Failed = 1 }},
		"too few bytes":          {true, func(r *Run) { r.Bytes = 99 }},
		"host memory":            {true, func(r *Run) { r.RX.Host = 1 }},
		"not in device memory":   {true, func(r *Run) { r.RX.Device = 99 }},
		"sent from host memory":  {true, func(r *Run) { r.What, r.TX = Write, session.Place{Host: 100} }},
		"p2p off, not bounced":   {false, func(*Run) {}},
		"copy, in device memory": {true, func(r *Run) { r.Mode = transfer.Copy }},
	} {
		r := good()
		c.change(&r)
		if r.wrong(100, c.p2p) == nil {
			t.Errorf("%s: nothing is wrong", name)
		}
	}
	r.Bytes = 99
	rep := Report{Head: session.Head{P2P: true}, Runs: []Run{r}, size: 100}
	testkit.ErrorSays(t, rep.check(), "99 bytes of 100")
}

func TestSameBytes(t *testing.T) {
	b := make([]byte, 3<<20+5)
	gpumem.FillAt(b, 9, 0)
	if !sameBytes(b, session.Pattern(9)) || sameBytes(b, session.Pattern(8)) {
		t.Error("the pattern is not distinguished from another one")
	}
	b[len(b)-1]++
	if sameBytes(b, session.Pattern(9)) {
		t.Error("the last byte is not looked at")
	}
}
