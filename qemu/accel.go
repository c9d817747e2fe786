package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"vnic.dev/vnic/assets"
	"vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/guest-images/agent"
)

// probeLimit is how long the probe's guest has to boot: with KVM it takes a second or two.
const probeLimit = 15 * time.Second

// probed is what a probe of KVM found: kvm.json of the cache. It holds until the machine boots
// again.
type probed struct {
	probeKey
	OK  bool   `json:"ok"`
	Why string `json:"why"`
}

// probeKey says what was probed.
type probeKey struct {
	BootID string `json:"boot_id"`
	QEMU   string `json:"qemu"`
	Kernel string `json:"kernel"`
}

func keyOf(q assets.Binary, k assets.Kernel) probeKey {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return probeKey{BootID: strings.TrimSpace(string(b)), QEMU: q.Version, Kernel: k.Version}
}

var probes = struct {
	sync.Mutex // held while probing: one at a time
	last       *probed
}{}

// ChooseAccel says whether KVM works here, in fact and not by the look of it: /dev/kvm may exist
// and then fail in the guest's first instructions. It boots a small guest, once for each boot of
// this machine. why is one line for the user.
func ChooseAccel(ctx context.Context, r *assets.Resolved) (accel Accel, why string, err error) {
	if why := kvmMissing(); why != "" {
		return AccelTCG, "TCG (slower): " + why, nil
	}
	probes.Lock()
	defer probes.Unlock()
	key := keyOf(r.QEMU, r.Kernel)
	p := probes.last
	if p == nil || p.probeKey != key {
		p = readProbe(r.Cache)
	}
	if p == nil || p.probeKey != key {
		p = &probed{probeKey: key}
		if p.Why, err = probe(ctx, r); err != nil {
			return "", "", err
		}
		p.OK = p.Why == ""
		_ = assets.SaveJSON(r.Cache, "kvm.json", p) // only saves time
	}
	probes.last = p
	if p.OK {
		return AccelKVM, "KVM", nil
	}
	return AccelTCG, "TCG (slower): KVM does not work here: " + p.Why, nil
}

func readProbe(dir string) *probed {
	b, err := os.ReadFile(filepath.Join(dir, "kvm.json"))
	p := new(probed)
	if err != nil || json.Unmarshal(b, p) != nil {
		return nil
	}
	return p
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
