package driver

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/virtionet"
)

func newTestSleeper(t testing.TB) (s *sleeper, call func()) {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	testkit.OK(t, err)
	if s, err = newSleeper(os.NewFile(uintptr(fd), "eventfd"), 8); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.close() })
	return s, func() { unix.Write(fd, eventfdOne) }
}

func TestSleepEndsOnce(t *testing.T) {
	s, call := newTestSleeper(t)
	expect := func(want bool) {
		t.Helper()
		if called, err := s.sleep(); called != want || err != nil {
			t.Fatalf("called %v, %v; want %v", called, err, want)
		}
	}
	call()
	expect(true)
	s.wake()
	s.wake()
	expect(false)
	s.wake()
	call()
	expect(false)
	expect(true)
	go call()
	expect(true)
	go s.wake()
	expect(false)
	if !s.called {
		t.Error("called is not set")
	}
	s.close()
	if _, err := s.sleep(); err == nil {
		t.Error("asleep on a closed descriptor")
	}
	s.wake()
}

// For a sleeper of a uio device, EIO from a read means that the device is gone; here it is the EIO of a terminal
// whose other end is closed. For a sleeper of an eventfd it stays EIO.
func TestUIODeviceThatIsGone(t *testing.T) {
	fd := testkit.Must(unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0))(t)
	s := testkit.Must(newSleeper(os.NewFile(uintptr(fd), "ptmx"), uioEvent))(t)
	testkit.OK(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	slave := testkit.Must(os.OpenFile(fmt.Sprintf("/dev/pts/%d", testkit.Must(unix.IoctlGetInt(fd, unix.TIOCGPTN))(t)),
		os.O_RDWR|unix.O_NOCTTY, 0))(t)
	testkit.Equal(t, "gone while it is there", s.gone(), false)
	testkit.OK(t, slave.Close())
	checkErr(t, "a device that is gone", errOf(s.sleep()), unix.ENODEV)
	testkit.Equal(t, "gone", s.gone(), true)
	s.size = 8
	checkErr(t, "an eventfd", errOf(s.sleep()), unix.EIO)
	s.size = uioEvent
	testkit.OK(t, s.close())
	checkErr(t, "one that is closed", errOf(s.sleep()), os.ErrClosed)
}

// A sleep lasts at most nap, in case calls do not come; after two naps with work afterwards, nap is a millisecond
// until a call comes.
func TestDeviceThatIsNotHeard(t *testing.T) {
	s, call := newTestSleeper(t)
	s.ears.nap = firstNap
	nap := func() {
		t.Helper()
		if called, err := s.sleep(); called || err != nil || !s.ears.napped {
			t.Fatalf("called %t, %v, %+v", called, err, s.ears)
		}
	}
	nap()
	nap()
	testkit.Equal(t, "deaf", s.ears.worked(), false)
	testkit.Equal(t, "deaf without another nap", s.ears.worked(), false)
	nap()
	testkit.Equal(t, "deaf", s.ears.worked(), true)
	testkit.Equal(t, "nap", s.ears.nap, deafNap)
	nap()
	testkit.Equal(t, "told again", s.ears.worked(), false)
	s.wake()
	if called, err := s.sleep(); called || err != nil || s.ears.napped {
		t.Errorf("called %t, %v, %+v", called, err, s.ears)
	}
	nap()
	call()
	if called, err := s.sleep(); !called || err != nil || s.ears != (ears{}) {
		t.Errorf("called %t, %v, %+v", called, err, s.ears)
	}
	go s.wake()
	if called, err := s.sleep(); called || err != nil || s.ears.napped {
		t.Errorf("called %t, %v, %+v", called, err, s.ears)
	}
	const heard = 2 * time.Millisecond
	s.ears.heard = heard
	for range 2 {
		call()
		if called, err := s.sleep(); !called || err != nil || s.ears != (ears{nap: heard, heard: heard}) {
			t.Fatalf("called %t, %v, %+v", called, err, s.ears)
		}
		nap()
		testkit.Equal(t, "deaf", s.ears.worked(), false)
		nap()
		testkit.Equal(t, "deaf", s.ears.worked(), true)
	}
	s.ears.heard = 0
	// A call that has come when a late goroutine notices that nap is over ends the sleep.
	s.ears.nap = 1
	call()
	if called, err := s.sleep(); !called || err != nil || s.ears != (ears{}) {
		t.Errorf("called %t, %v, %+v", called, err, s.ears)
	}
}

func TestNoWakeIsLost(t *testing.T) {
	for _, d := range []time.Duration{0, 50 * time.Microsecond} {
		s, _ := newTestSleeper(t)
		s.ears.nap = d
		noWakeIsLost(t, s)
	}
}

func noWakeIsLost(t *testing.T, s *sleeper) {
	const wakers, each = 4, 5000
	wants := make(chan int, wakers)
	var wg sync.WaitGroup
	for i := range wakers {
		wg.Go(func() {
			for range each {
				wants <- i
				s.wake()
			}
		})
	}
	for seen := 0; seen < wakers*each; {
		testkit.OK(t, errOf(s.sleep()))
		for more := true; more; {
			select {
			case <-wants:
				seen++
			default:
				more = false
			}
		}
	}
	wg.Wait()
}

func TestSpinFollowsWhatWouldHavePaid(t *testing.T) {
	const us = time.Microsecond
	s := spinner{max: 30 * us}
	for _, c := range []struct{ slept, want time.Duration }{
		{100 * us, 0}, {10 * us, 5 * us}, {10 * us, 10 * us}, {29 * us, 20 * us}, {1 * us, 30 * us}, {1 * us, 30 * us},
		{30 * us, 15 * us}, {time.Second, 7500}, {time.Second, 0}, {time.Second, 0},
	} {
		if s.slept(c.slept); s.window != c.want {
			t.Errorf("after a sleep of %v: %v, want %v", c.slept, s.window, c.want)
		}
	}
	s = spinner{}
	if s.slept(1); s.window != 0 {
		t.Error("it spins, told not to")
	}
}

func TestNetHdrCodec(t *testing.T) {
	h := netHdr{1, 0x84, 0x0203, 0x0405, 0x0607, 0x0809, 0x0a0b}
	var b [netHdrLen]byte
	h.encode(&b)
	if want := []byte{1, 0x84, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10}; !bytes.Equal(b[:], want) {
		t.Errorf("% x, want % x", b, want)
	}
	var got netHdr
	if got.decode(&b); got != h {
		t.Errorf("%+v, want %+v", got, h)
	}
}

func TestFeatureChoice(t *testing.T) {
	const all = featsWanted
	for _, c := range []struct {
		name       string
		offer, got uint64
	}{
		{"all", all, all},
		{"more than we know", ^uint64(0), all},
		{"no GUEST_CSUM", all &^ virtionet.FGuestCsum,
			all &^ (virtionet.FGuestCsum | virtionet.FGuestTSO4 | virtionet.FGuestTSO6 | virtionet.FGuestECN)},
		{"no CSUM", all &^ virtionet.FCsum,
			all &^ (virtionet.FCsum | virtionet.FHostTSO4 | virtionet.FHostTSO6 | virtionet.FHostECN)},
		{"no CTRL_VQ", all &^ virtionet.FCtrlVQ, all &^ (virtionet.FCtrlVQ | virtionet.FMQ)},
		{"no TSO", all &^ (virtionet.FHostTSO4 | virtionet.FHostTSO6),
			all &^ (virtionet.FHostTSO4 | virtionet.FHostTSO6 | virtionet.FHostECN)},
	} {
		if got, err := chooseFeatures(c.offer); err != nil || got != c.got {
			t.Errorf("%s: %s, %v; want %s", c.name, featureString(got), err, featureString(c.got))
		}
	}
	testkit.Equal(t, "names of features", featureString(virtionet.FCsum|1<<49), "CSUM|bit49")
}

func TestDefaults(t *testing.T) {
	for _, c := range []struct{ ring, pages, wantRing, wantPages int }{
		{0, 0, 256, 4}, {1, 1, 8, 1}, {8, 16, 8, 7}, {1000, 3, 512, 3}, {1 << 20, 99, 1024, 16},
	} {
		o := Options{RingSize: c.ring, PagesPerChain: c.pages}
		if o.fill(); o.RingSize != c.wantRing || o.PagesPerChain != c.wantPages {
			t.Errorf("%+v: ring %d, %d pages", c, o.RingSize, o.PagesPerChain)
		}
	}
}

// TestRegistersAreOneAccess checks the register accessors as compiled without -race: each has one instruction that
// accesses the register, of the register's width.
func TestRegistersAreOneAccess(t *testing.T) {
	want := map[string]map[string]string{
		"amd64": {"read8": "MOVBLZX", "write8": "MOVB", "read16": "MOVWLZX", "write16": "MOVW", "read32": "MOVL",
			"write32": "MOVL"},
		"arm64": {"read8": "MOVBU", "write8": "MOVB", "read16": "MOVHU", "write16": "MOVH", "read32": "MOVWU",
			"write32": "MOVW"},
	}[runtime.GOARCH]
	if want == nil {
		t.Skip("the driver is for amd64 and arm64")
	}
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip(err)
	}
	out, err := exec.CommandContext(t.Context(), goTool, "build", "-gcflags=-S", "-o", os.DevNull, ".").CombinedOutput()
	if err != nil {
		t.Skipf("go build: %v", err)
	}
	function := regexp.MustCompile(`^\S*driver\.regs\.(\w+) STEXT`)
	indexed := regexp.MustCompile(`\t(MOV\w*)\t.*\((AX|R0)\)\(\w+(\*1)?\)`) // a slice's data pointer and an index
	got := map[string][]string{}
	name := ""
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		line := lines.Text()
		if strings.Contains(line, " STEXT") {
			name = ""
		}
		if m := function.FindStringSubmatch(line); m != nil {
			name = m[1]
		} else if m := indexed.FindStringSubmatch(line); m != nil && name != "" {
			got[name] = append(got[name], m[1])
		}
	}
	for f, op := range want {
		if len(got[f]) != 1 || got[f][0] != op {
			t.Errorf("%s: accesses %v, want one %s", f, got[f], op)
		}
	}
}
