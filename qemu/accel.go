package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"vnic.dev/vnic/assets"
	"vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/guest-images/agent"
)

// probeLimit is how long the probe's guest has to boot: with KVM it takes a second or two.
const probeLimit = 15 * time.Second

var probing = struct {
	sync.Mutex // held while probing: one at a time
	found      probes
}{}

// ChooseAccel says whether KVM works here, in fact and not by the look of it: /dev/kvm may exist
// and then fail in the guest's first instructions. It boots a small guest, once for each boot of
// this machine. why is one line for the user.
func ChooseAccel(ctx context.Context, r *assets.Resolved) (accel Accel, why string, err error) {
	if why := kvmMissing(); why != "" {
		return AccelTCG, "TCG (slower): " + why, nil
	}
	probing.Lock()
	defer probing.Unlock()
	key := keyOf(r.QEMU, r.Kernel)
	p := probing.found.find(key)
	if p == nil {
		p = readProbes(r.Cache).find(key)
	}
	if p == nil {
		p = &probed{probeKey: key, Fetched: r.Kernel.Source == assets.SourceCache}
		if p.Why, err = probe(ctx, r); err != nil {
			return "", "", err
		}
		p.OK = p.Why == ""
		readProbes(r.Cache).with(*p).save(r.Cache)
	}
	found := *p
	probing.found = probing.found.with(found)
	if found.OK {
		return AccelKVM, "KVM", nil
	}
	return AccelTCG, "TCG (slower): KVM does not work here: " + found.Why, nil
}

// kvmMissing says why KVM cannot even be tried; "" = it can.
func kvmMissing() string {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "no /dev/kvm"
	case errors.Is(err, os.ErrPermission):
		return "/dev/kvm may not be opened (is the user in group kvm?)"
	case err != nil:
		return err.Error()
	}
	_ = f.Close()
	return ""
}

// probe boots a guest under KVM as far as its init. why says how that failed; err is for what has
// nothing to do with KVM.
func probe(ctx context.Context, r *assets.Resolved) (why string, err error) {
	var initrd io.ReadCloser
	img, err := guestimages.Build(ctx, guestimages.Options{CacheDir: r.Cache})
	if err == nil {
		initrd, err = img.Initrd(agent.Config{})
	}
	if err != nil {
		return "", fmt.Errorf("KVM probe: %w", err)
	}
	defer func() { _ = initrd.Close() }()
	m, err := Start(ctx, Config{
		Name: "KVM probe", QEMU: r.QEMU, Kernel: r.Kernel, Initrd: []io.Reader{initrd}, RAMSize: 256 << 20,
		Accel: AccelKVM, BootLimit: probeLimit, TimeLimit: 2 * probeLimit,
	})
	if ctx.Err() != nil {
		if m != nil {
			_ = m.Close()
		}
		return "", ctx.Err()
	}
	var e *RunError
	switch {
	case err == nil:
		return "", m.Close()
	case errors.As(err, &e):
		why = e.Err.Error()
		if e.Detail != "" {
			why += ": " + e.Detail
		}
		if len(e.Stderr) > 0 {
			why += ": " + e.Stderr[0]
		}
		return why, nil
	}
	return "", err
}
