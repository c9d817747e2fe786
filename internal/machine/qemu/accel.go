package qemu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine/assets"
)

// Accel is how QEMU runs the guest's code.
type Accel string

// Accelerators.
const (
	AccelAuto Accel = "" // KVM if it works in a probe, else TCG
	AccelKVM  Accel = "kvm"
	AccelTCG  Accel = "tcg"
)

// EnvAccel is the environment variable for the default of --accel.
const EnvAccel = "VNIC_ACCEL"

// ParseAccel parses auto, kvm or tcg.
func ParseAccel(s string) (Accel, error) {
	switch a := Accel(s); a {
	case AccelKVM, AccelTCG:
		return a, nil
	case "auto":
		return AccelAuto, nil
	}
	return "", fmt.Errorf("%s: auto, kvm or tcg", s)
}

// ErrNoKVM means that KVM is requested, and cannot be tried. It is inside an *assets.Missing.
var ErrNoKVM = errors.New("no KVM")

var probing = struct {
	sync.Mutex // one probe at a time in this process
	found      probes
}{}

// ChooseAccel decides how guests run; why is a line for the user. AccelAuto chooses KVM if a small guest
// boots with it, because /dev/kvm may exist and then fail in the guest. The result is kept in the cache, at most until
// the host's next boot. AccelKVM is not probed; it is an error if /dev/kvm cannot be opened.
//
// After a successful probe, or with its kept result, limits.Slow rises if the probe's guest booted slowly
// (limits.Booted).
func ChooseAccel(ctx context.Context, r *assets.Resolved, want Accel) (accel Accel, why string, err error) {
	missing := kvmMissing()
	switch {
	case want == AccelTCG:
		return AccelTCG, "TCG, as requested", nil
	case want == AccelKVM && missing != "":
		return "", "", &assets.Missing{What: "--accel kvm", Err: fmt.Errorf("%w: %s", ErrNoKVM, missing),
			Fix: "--accel auto or tcg: QEMU emulates the guests' CPUs then, which is slower"}
	case want == AccelKVM:
		return AccelKVM, "KVM, as requested", nil
	case missing != "":
		return AccelTCG, "TCG (slower): " + missing, nil
	}
	probing.Lock()
	defer probing.Unlock()
	key := keyOf(r.QEMU, r.Kernel)
	p := probing.found.find(key)
	if p == nil {
		p = readProbes(r.Cache).find(key)
	}
	if p == nil {
		if p, err = probe(ctx, r); err != nil {
			return "", "", err
		}
		readProbes(r.Cache).with(*p).save(r.Cache)
	}
	found := *p
	probing.found = probing.found.with(found)
	if found.OK {
		limits.Booted(found.took())
		return AccelKVM, "KVM", nil
	}
	return AccelTCG, "TCG (slower): KVM does not work here: " + found.Why, nil
}

// kvmDevice is KVM's device; envKVMDevice may name another file for tests.
const (
	kvmDevice    = "/dev/kvm"
	envKVMDevice = "VNIC_TEST_KVM"
)

// MayUseKVM reports whether KVM can be tried: /dev/kvm is a device that can be opened.
func MayUseKVM() bool { return kvmMissing() == "" }

// kvmMissing returns why KVM cannot be tried; "" = it can.
func kvmMissing() string {
	path := cmp.Or(os.Getenv(envKVMDevice), kvmDevice)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "no /dev/kvm"
	case errors.Is(err, os.ErrPermission):
		return "/dev/kvm may not be opened (is the user in group kvm?)"
	case err != nil:
		return err.Error()
	}
	st, err := f.Stat()
	_ = f.Close()
	if path == kvmDevice && (err != nil || st.Mode()&os.ModeCharDevice == 0) { // in some containers
		return "/dev/kvm is not a device"
	}
	return ""
}
