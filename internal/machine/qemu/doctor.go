package qemu

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/confine"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/machine/assets/gpumodule"
	"vnic.dev/vnic/internal/memavail"
)

// Report is the result of Doctor.
type Report struct {
	Facts []assets.Fact `json:"facts"`
	// Ready: QEMU, a kernel for NIC virtio (vnic run's default), memory, and the guests' program, or Go to build it, are
	// here.
	Ready bool `json:"ready"`
	// CanFetch: vnic run can download a QEMU or a kernel that is missing, if the mirror is reachable, and then lacks
	// nothing but perhaps memory.
	CanFetch      bool   `json:"can_fetch"`
	DownloadBytes int64  `json:"download_bytes"` // of a missing QEMU or kernel, with apt's lists
	DiskBytes     int64  `json:"disk_bytes"`     // of a missing QEMU or kernel, unpacked
	MemoryBytes   int64  `json:"memory_bytes"`   // that two guests need
	Probe         *Probe `json:"kvm_probe,omitempty"`
}

// Probe is the result of a guest with KVM.
type Probe struct {
	QEMU    string    `json:"qemu"`
	Kernel  string    `json:"kernel"`
	At      time.Time `json:"at"`
	Seconds float64   `json:"seconds"` // from the guest's start until its init reported, or until it failed
	OK      bool      `json:"ok"`
	Why     string    `json:"why,omitempty"`
	Console []string  `json:"console,omitempty"` // lines of a failed guest's console
}

// needMemory is an estimate, in bytes, for two guests of the default size, their GPUs and this process. It assumes that
// a guest touches less than half of its RAM.
const needMemory = 1536 << 20

// Doctor examines this machine. It leaves no files, starts no guest and uses no network.
func Doctor(ctx context.Context, o assets.Options) *Report {
	s := assets.Look(ctx, o)
	d := &Report{Facts: s.Found, MemoryBytes: needMemory, DownloadBytes: s.DownloadBytes, DiskBytes: s.DiskBytes}
	d.kernel(s)
	program := d.program(s.Cache)
	d.userland(s.Cache)
	d.Facts = append(d.Facts, gpumodule.Look(ctx, gpumodule.Options{Options: o, Kernel: s.Kernel,
		Source: guestimages.GPUModuleSource()}, os.Getenv(guestimages.EnvGPUModule), s.CanFetch))
	d.kvm(s)
	d.Facts = append(d.Facts, s.Means...)
	memory := d.memory()
	d.sandbox()
	runs := !slices.ContainsFunc(d.Facts, func(f assets.Fact) bool {
		return f.Name == "nic virtio" && f.State == assets.Lacking // vnic run's default NIC
	})
	d.Ready = s.Ready && program && memory && runs
	d.CanFetch = s.CanFetch && program && runs
	return d
}

func (d *Report) add(name string, s assets.State, value, fix string) {
	d.Facts = append(d.Facts, assets.NewFact(name, s, value, fix))
}

// kernel replaces the facts about NIC models that do not fully work with the guests' kernel, if there is a kernel.
func (d *Report) kernel(s *assets.Survey) {
	for i := range d.Facts {
		f := &d.Facts[i]
		nic, ok := strings.CutPrefix(f.Name, "nic ")
		if !ok || s.Kernel.Image == "" {
			continue
		}
		fit := FitOf(s.Kernel, nic)
		what, err := "", fit.Err(false)
		devmem := fit.Err(true)
		switch {
		case err == nil && devmem == nil:
			continue
		case err == nil:
			what, err = "an ordinary NIC only: ", devmem
		case devmem == nil:
			what = "for vnic's driver only, without an interface of the kernel's: "
		}
		state := assets.Lacking
		if what != "" {
			state = assets.Worse
		}
		*f = assets.NewFact(f.Name, state, what+"kernel "+s.Kernel.Version+": "+err.Error(), FixKernel(err))
	}
}

func (d *Report) kvm(s *assets.Survey) {
	if why := kvmMissing(); why != "" {
		d.add("kvm", assets.Worse, why, slower)
		return
	}
	key, probes := keyOf(s.QEMU, s.Kernel), readProbes(s.Cache)
	p := cmp.Or(probes.find(key), probes.last(key))
	if p == nil {
		d.add("kvm", assets.Worse, "/dev/kvm is there, and was not tried yet", "the first run tries it")
		return
	}
	d.Probe = &Probe{QEMU: p.QEMU, Kernel: p.Kernel, At: p.At, Seconds: p.Seconds, OK: p.OK, Why: p.Why,
		Console: p.Console}
	tried := fmt.Sprintf("QEMU %s and kernel %s, %s, %.1f s", p.QEMU, p.Kernel, p.At.Local().Format(time.DateTime),
		p.Seconds)
	if p.OK {
		d.add("kvm", assets.Good, "works: a guest has booted with it ("+tried+")", "")
		return
	}
	fix := slower
	switch {
	case !p.holds(time.Now()):
		fix = "the next run tries it again"
	case p.Late:
		fix += "; it is tried again an hour later, as a busy machine may have been late"
	}
	d.add("kvm", assets.Worse, "a guest was tried with it, and did not work: "+p.Why+" ("+tried+")", fix)
}

const slower = "QEMU emulates the guests' CPUs instead (TCG): slower, and nothing else is needed"

// sandbox adds a fact about vnic's confinement. If vnic cannot be confined, a run fails only if the user gave
// --sandbox on or log.
func (d *Report) sandbox() {
	switch s := confine.Look(); {
	case !s.Seccomp:
		d.add("sandbox", assets.Worse, "none: "+s.String(), "vnic is not confined: a kernel with "+
			"CONFIG_SECCOMP_FILTER, or a container that permits seccomp(2)")
	case s.Landlock == 0:
		d.add("sandbox", assets.Worse, s.String()+"; no Landlock", "vnic can open files that its user may read: "+
			"a kernel with Landlock (5.13, CONFIG_SECURITY_LANDLOCK, and landlock in lsm= of its command line)")
	case !s.Listeners:
		d.add("sandbox", assets.Worse, s.String(), "what is refused is not counted: Linux 5.7 or newer")
	default:
		d.add("sandbox", assets.Good, s.String(), "")
	}
}

func (d *Report) memory() bool {
	ok := true
	have, _ := memavail.Available("/")
	if value := fmt.Sprintf("%d MB available", have>>20); have < needMemory {
		ok = false
		d.add("memory", assets.Lacking, value, fmt.Sprintf("two guests need about %d MB", needMemory>>20))
	} else {
		d.add("memory", assets.Good, value, "")
	}
	if f, err := NewMemory("vnic-doctor", 4096); err != nil {
		ok = false
		d.add("memfd", assets.Lacking, err.Error(), "allow memfd_create: guest and GPU memory is shared by it")
	} else {
		_ = f.Close()
		d.add("memfd", assets.Good, "can be made and sealed", "")
	}
	var st unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &st); err != nil {
		d.add("shm", assets.Worse, "/dev/shm: "+err.Error(),
			"needed only by other programs that share memory there; vnic uses memfds")
	} else {
		d.add("shm", assets.Good, fmt.Sprintf("%d MB free in /dev/shm, of which vnic needs none",
			int64(st.Bavail)*st.Bsize>>20), "")
	}
	return ok
}

// program adds a fact about the guests' program, and reports whether it exists or can be built.
func (d *Report) program(dir string) bool {
	from, there, err := guestimages.FindProgram(dir)
	state := assets.Worse
	switch {
	case err != nil:
		state, from = assets.Lacking, err.Error()
	case there:
		state = assets.Good
	}
	d.add("guest program", state, from, "")
	return err == nil
}

// userland adds a fact about u-root's commands.
func (d *Report) userland(dir string) {
	switch from, there, err := guestimages.LookUserland(dir); {
	case err != nil:
		d.add("guest commands", assets.Worse, err.Error(), "guests of 'vnic boot' have what this machine has: "+
			"take a release for more, or build vnic with make in a checkout")
	case there:
		d.add("guest commands", assets.Good, from, "")
	default:
		d.add("guest commands", assets.Worse, from, fmt.Sprintf("the first 'vnic boot' builds u-root's commands: about a "+
			"minute, %d MB are downloaded", guestimages.UserlandMegabytes))
	}
}
