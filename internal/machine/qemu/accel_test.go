package qemu

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/testkit"
)

func TestAccelIsChosenByTrying(t *testing.T) {
	r := fetched(t)
	t.Setenv("VNIC_GUEST", must(program()))
	accel, why, err := ChooseAccel(t.Context(), r, AccelAuto)
	testkit.OK(t, err)
	t.Log(accel, why)
	if (accel == AccelTCG) == (why == "KVM") {
		t.Errorf("%s: %s", accel, why)
	}
	again, _, err := ChooseAccel(t.Context(), r, AccelAuto)
	if err != nil || again != accel {
		t.Errorf("asked again: %s, %v", again, err)
	}
}

// Invariant: qemu: --accel kvm without KVM is one error that says why, and --accel tcg never looks
// for KVM.
func TestAccelThatIsAskedForIsNotTried(t *testing.T) {
	none := filepath.Join(t.TempDir(), "kvm")
	r := &assets.Resolved{Cache: t.TempDir()}
	for _, c := range []struct {
		device    string
		want, got Accel
		missing   bool
		why       string
	}{
		{os.DevNull, AccelKVM, AccelKVM, false, "KVM, as requested"},
		{none, AccelKVM, "", true, ""},
		{os.DevNull, AccelTCG, AccelTCG, false, "TCG, as requested"},
		{none, AccelTCG, AccelTCG, false, "TCG, as requested"},
		{none, AccelAuto, AccelTCG, false, "TCG (slower): no /dev/kvm"},
	} {
		t.Setenv(envKVMDevice, c.device)
		accel, why, err := ChooseAccel(t.Context(), r, c.want)
		var missing *assets.Missing
		if accel != c.got || why != c.why || errors.As(err, &missing) != c.missing || errors.Is(err, ErrNoKVM) != c.missing {
			t.Errorf("%+v: %s, %q, %v", c, accel, why, err)
		}
	}
	for s, want := range map[string]Accel{"auto": AccelAuto, "kvm": AccelKVM, "tcg": AccelTCG} {
		a, err := ParseAccel(s)
		if a != want || err != nil {
			t.Errorf("%s: %q, %v", s, a, err)
		}
	}
	for _, s := range []string{"", "KVM", "hvf"} {
		testkit.ErrorSays(t, testkit.Err(ParseAccel(s)), "auto, kvm or tcg")
	}
}

func TestKVMThatMayNotBeOpenedIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kvm")
	testkit.OK(t, os.WriteFile(path, nil, 0o400))
	t.Setenv(envKVMDevice, path)
	var why string
	testkit.WithoutOverride(t, func() { why = kvmMissing() })
	testkit.Equal(t, "missing", why, "/dev/kvm may not be opened (is the user in group kvm?)")
}

// Keep replaces a probe's kept success by a later failure of KVM.
func TestWhatKVMStopsIsRemembered(t *testing.T) {
	testkit.LeavesNothing(t)
	t.Setenv(envKVMDevice, os.DevNull)
	c := script(t, "exit 1")
	c.Accel, c.Cache = AccelAuto, t.TempDir()
	key := keyOf(c.QEMU, c.Kernel)
	probes{{probeKey: key, OK: true, At: time.Now()}}.save(c.Cache)
	_, err := Start(t.Context(), c)
	var e *RunError
	if !errors.As(err, &e) || !e.KVM || e.Record() == "" {
		t.Fatalf("got %v", err)
	}
	if p := readProbes(c.Cache).find(key); p == nil || !p.OK {
		t.Errorf("before it is kept: %+v", p)
	}
	Keep(e.Record())
	if p := readProbes(c.Cache).find(key); p == nil || p.OK || !p.Late || p.Why != "QEMU ended early: exit status 1" {
		t.Errorf("after: %+v", p)
	}
	c.Accel = AccelKVM
	if _, err = Start(t.Context(), c); !errors.As(err, &e) || !e.KVM || e.Record() != "" {
		t.Errorf("where it was asked for: %v", err)
	}
	Keep("")
	Keep("{")
}
