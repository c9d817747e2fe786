package qemu

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/guest-images"
)

// State says what a Fact means for a run.
type State string

// States.
const (
	Good    State = "ok"
	Worse   State = "worse"   // works, but worse, or not known yet
	Lacking State = "missing" // a run needs it
)

// Fact is one thing that a machine has or lacks.
type Fact struct {
	Name  string `json:"name"` // "qemu", "kernel", "nic virtio", "nic gve", "guest program", "kvm", "packages", "mirror", "keyring", "cache", "space", "memory", "memfd", "shm"
	OK    bool   `json:"ok"`   // State is Good
	State State  `json:"state"`
	Value string `json:"value"`         // what was found
	Fix   string `json:"fix,omitempty"` // what to do when not Good
}

// Report is what Doctor found.
type Report struct {
	Facts         []Fact `json:"facts"`
	Ready         bool   `json:"ready"`          // a run needs no download
	CanFetch      bool   `json:"can_fetch"`      // what is missing can be downloaded, if the mirror can be reached
	DownloadBytes int64  `json:"download_bytes"` // what the first run will download
	DiskBytes     int64  `json:"disk_bytes"`     // what that takes up in the cache
	MemoryBytes   int64  `json:"memory_bytes"`   // memory that two guests need
}

// What two guests of the default size, their GPUs and this process need; a guest touches less than half of its RAM.
const needMemory = 1536 << 20

// listBytes is what apt's lists of one suite and its base amount to.
const listBytes = 22 << 20

// Doctor looks at this machine. It changes nothing, starts no guest and uses no network.
func Doctor(ctx context.Context, o Options) *Report {
	d := &doctor{Report: Report{MemoryBytes: needMemory}}
	dir, err := CacheDir(o)
	have := new(resolved)
	if err == nil {
		have, err = cache{dir}.load()
	}
	binary, haveQEMU := d.qemu(ctx, o, dir, have)
	kernel, haveKernel := d.kernel(o, dir, have)
	d.personalities(binary, kernel, have)
	program := d.program(dir)
	d.kvm(dir, binary, kernel)
	packages := d.packages(o, haveQEMU && haveKernel)
	for role, there := range map[string]bool{roleQEMU: haveQEMU, roleKernel: haveKernel} {
		if !there {
			d.DownloadBytes += lock.fetch[role].download
			d.DiskBytes += lock.fetch[role].disk
		}
	}
	if d.DownloadBytes > 0 {
		d.DownloadBytes += listBytes
	}
	room := d.cache(dir, err)
	memory := d.memory()
	d.Ready = haveQEMU && haveKernel && program && memory
	d.CanFetch = packages && program && room
	return &d.Report
}

type doctor struct{ Report }

func (d *doctor) add(name string, s State, value, fix string) {
	if s == Good {
		fix = ""
	}
	d.Facts = append(d.Facts, Fact{Name: name, OK: s == Good, State: s, Value: value, Fix: fix})
}

// addError takes what to do from the error when it says so.
func (d *doctor) addError(name string, err error) {
	var m *Missing
	if errors.As(err, &m) {
		d.add(name, Lacking, fmt.Sprintf("%s: %v", m.What, m.Err), m.Fix)
		return
	}
	d.add(name, Lacking, err.Error(), "")
}

func (d *doctor) qemu(ctx context.Context, o Options, dir string, have *resolved) (Binary, bool) {
	if path := cmp.Or(o.QEMU, os.Getenv(EnvQEMU)); path != "" {
		b, err := checkQEMU(ctx, path, SourceGiven, o.oldest())
		if err != nil {
			d.addError("qemu", err)
			return b, false
		}
		d.add("qemu", Good, fmt.Sprintf("%s (given: %s)", b.Version, path), "")
		return b, true
	}
	note := ""
	if !o.IgnoreSystemQEMU {
		b, n, ok := systemQEMU(ctx, o.oldest())
		if ok {
			d.add("qemu", Good, fmt.Sprintf("%s (%s)", b.Version, b.Args[0]), "")
			return b, true
		}
		if note = n; note != "" {
			note = "; " + note
		}
	}
	if have.QEMU != nil {
		b, err := binaryOf(filepath.Join(dir, have.QEMU.Dir))
		if err == nil {
			b.Version = strings.TrimPrefix(upstream(have.QEMU.Version), "v")
			d.add("qemu", Good, fmt.Sprintf("%s (in the cache, from %s)%s", b.Version, have.QEMU.Suite, note), "")
			return b, true
		}
		note += "; cache: " + err.Error()
	}
	d.add("qemu", Lacking, "none that can be used"+note, "the first run fetches it; or install "+MinQEMU+" or newer, or give its path (--qemu)")
	return Binary{}, false
}

func (d *doctor) kernel(o Options, dir string, have *resolved) (Kernel, bool) {
	if image := cmp.Or(o.Kernel, os.Getenv(EnvKernel)); image != "" {
		k, err := givenKernel(image, cmp.Or(o.Modules, os.Getenv(EnvModules)))
		if err != nil {
			d.addError("kernel", err)
			return k, false
		}
		d.add("kernel", Good, fmt.Sprintf("%s (given: %s)", k.Version, image), "")
		return k, true
	}
	if have.Kernel != nil {
		if k, err := kernelOf(filepath.Join(dir, have.Kernel.Dir)); err == nil {
			d.add("kernel", Good, fmt.Sprintf("%s (in the cache, from %s)", k.Version, have.Kernel.Suite), "")
			return k, true
		}
	}
	d.add("kernel", Lacking, "none for guests", "the first run fetches it, or give one (--kernel, --modules)")
	return Kernel{}, false
}

func (d *doctor) kvm(dir string, b Binary, k Kernel) {
	if why := kvmMissing(); why != "" {
		d.add("kvm", Worse, why, "guests run by TCG, which needs no more but is slower")
		return
	}
	key := probed{BootID: bootID(), QEMU: b.Version, Kernel: k.Version}
	switch p := readProbe(dir); {
	case p == nil || !p.sameAs(key):
		d.add("kvm", Worse, "/dev/kvm is there, not tried yet", "the first run tries it")
	case p.OK:
		d.add("kvm", Good, "works (tried since this boot)", "")
	default:
		d.add("kvm", Worse, "does not work: "+p.Why, "guests run by TCG, which needs no more but is slower")
	}
}

// packages says whether packages can be fetched; when nothing needs to be, what is missing matters less.
func (d *doctor) packages(o Options, done bool) bool {
	worst := Lacking
	if done {
		worst = Worse
	}
	ok := true
	var lacking []string
	for _, tool := range []string{"apt-get", "apt-config", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			lacking = append(lacking, tool)
		}
	}
	if lacking == nil {
		d.add("packages", Good, "apt-get and dpkg-deb", "")
	} else {
		ok = false
		d.add("packages", worst, "no "+strings.Join(lacking, ", "), "give QEMU and a kernel yourself (--qemu, --kernel, --modules)")
	}
	a, err := findArchive(&o, aptEtc)
	var m *Missing
	switch {
	case err == nil:
		d.add("mirror", Good, a.mirror, "")
		d.add("keyring", Good, a.keyring, "")
		return ok
	case errors.As(err, &m) && errors.Is(err, ErrNoKeyring):
		d.add("mirror", Good, a.mirror, "")
		d.add("keyring", worst, m.Err.Error(), m.Fix)
	case errors.As(err, &m):
		d.add("mirror", worst, m.Err.Error(), m.Fix)
	default:
		d.add("mirror", worst, err.Error(), "")
	}
	return false
}

func (d *doctor) cache(dir string, err error) bool {
	if err != nil {
		d.addError("cache", err)
		return false
	}
	writable := dir
	for writable != "/" {
		if _, err := os.Stat(writable); err == nil {
			break
		}
		writable = filepath.Dir(writable)
	}
	if err := unix.Access(writable, unix.W_OK); err != nil {
		d.add("cache", Lacking, fmt.Sprintf("%s: %v", dir, err), "set "+EnvCache+" to a directory that you may write")
	} else {
		d.add("cache", Good, dir, "")
	}
	c := cache{dir}
	free, err := c.free()
	need := (d.DownloadBytes + d.DiskBytes) * 6 / 5
	switch {
	case err != nil:
		d.addError("space", err)
		return false
	case free < need:
		d.add("space", Lacking, fmt.Sprintf("%d MB free in the cache, %d MB needed", free>>20, need>>20), "free some, or set "+EnvCache+" to a directory elsewhere")
		return false
	}
	d.add("space", Good, fmt.Sprintf("%d MB free in the cache", free>>20), "")
	return true
}

func (d *doctor) memory() bool {
	ok := true
	have := availableMemory()
	if value := fmt.Sprintf("%d MB available", have>>20); have < needMemory {
		ok = false
		d.add("memory", Lacking, value, fmt.Sprintf("two guests need about %d MB", needMemory>>20))
	} else {
		d.add("memory", Good, value, "")
	}
	if f, err := NewMemory("vnic-doctor", 4096); err != nil {
		ok = false
		d.add("memfd", Lacking, err.Error(), "allow memfd_create: guest and GPU memory is shared by it")
	} else {
		_ = f.Close()
		d.add("memfd", Good, "can be made and sealed", "")
	}
	var st unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &st); err != nil {
		d.add("shm", Worse, "/dev/shm: "+err.Error(), "needed only by other programs that share memory there; vnic uses memfds")
	} else {
		d.add("shm", Good, fmt.Sprintf("%d MB free in /dev/shm; vnic uses memfds", int64(st.Bavail)*st.Bsize>>20), "")
	}
	return ok
}

// program looks for the guests' own program: a vnic that was built without make has none inside.
func (d *doctor) program(dir string) bool {
	from, there, err := guestimages.FindProgram(dir)
	switch {
	case err != nil:
		d.add("guest program", Lacking, err.Error(), "")
	case there:
		d.add("guest program", Good, from, "")
	default:
		d.add("guest program", Worse, from, "")
	}
	return err == nil
}

// availableMemory is what the kernel says can be had, or what is left of this control group's limit.
func availableMemory() int64 {
	have := int64(1) << 62
	if f, err := os.Open("/proc/meminfo"); err == nil {
		for s := bufio.NewScanner(f); s.Scan(); {
			if v, ok := strings.CutPrefix(s.Text(), "MemAvailable:"); ok {
				kb, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
				have = kb << 10
			}
		}
		_ = f.Close()
	}
	b, err := os.ReadFile("/proc/self/cgroup")
	group, ok := strings.CutPrefix(strings.TrimSpace(string(b)), "0::")
	if err != nil || !ok {
		return have
	}
	for dir := filepath.Join("/sys/fs/cgroup", group); strings.HasPrefix(dir, "/sys/fs/cgroup"); dir = filepath.Dir(dir) {
		limit, err1 := readInt(filepath.Join(dir, "memory.max"))
		used, err2 := readInt(filepath.Join(dir, "memory.current"))
		if err1 == nil && err2 == nil {
			have = min(have, max(0, limit-used))
		}
	}
	return have
}

func readInt(path string) (int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}
