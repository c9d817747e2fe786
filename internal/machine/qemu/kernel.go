package qemu

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/mod/semver"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/machine/assets"
)

// NewerKernel is the advice to a user whose kernel is too old.
const NewerKernel = "take a newer one (gve: 6.12 for an ordinary NIC, 7.2 for device memory TCP; 6.12, 7.2 and 7.3 " +
	"are tested), or none, and one is fetched"

// KernelFit is what a kernel is good for, as far as its files tell before it boots; nil: for all.
type KernelFit struct {
	Boot   error // a guest of it comes up
	NIC    error // its own driver has an interface
	Devmem error // programs can do device memory TCP
}

// driverOf is what a NIC wants of a kernel.
type driverOf struct {
	module string // has the interface
	option string // of the kernel, by which it is built
	text   string // of the driver, that is in a kernel which has it built in
	// Of the driver's symbols: those that it names if it is new enough for this NIC, and for device memory.
	needs, devmemNeeds string
	old, devmemOld     string // what it lacks without
	oldest             string // release of the kernel, where the driver is built in and cannot be looked into
	programs           string // a module besides, for programs; "": none
	options            []string
}

// What gve names was read from the modules of Linux 6.1, 6.12, 7.2 and 7.3 (docs/specs/gve.md).
var drivers = map[string]driverOf{
	"virtio": {module: "virtio_net", option: "VIRTIO_NET", text: "Fail to set guest offload.",
		programs: "uio_pci_generic"},
	"gve": {module: "gve", option: "GVE", text: "Could not get device information: err=%d",
		needs:       "dma_pool_alloc",
		old:         "it has neither this gVNIC's way to set up the admin queue, nor header split, nor flow steering",
		devmemNeeds: "page_pool_create",
		devmemOld:   "it takes no buffers from page pools",
		oldest:      "6.8",
		options:     []string{"NET_DEVMEM"}},
}

// bootOptions are what a kernel must have built in for a guest of ours to come up.
var bootOptions = []string{"BLK_DEV_INITRD", "BINFMT_ELF", "PROC_FS", "SYSFS", "DEVTMPFS", "PCI", "NET", "INET",
	"FUTEX", "EPOLL"}

// FitOf judges a kernel for guests with NICs of a model, "virtio" or "gve", by its modules, by its configuration where
// that lies beside it, and, without modules, by what its image has. It reads some 100 files' names and at most 600 MB.
func FitOf(k assets.Kernel, nic string) KernelFit {
	d := drivers[nic]
	var fit KernelFit
	conf := readConfig(k)
	fit.Boot = conf.lacks(bootOptions)
	fit.NIC = d.drives(k, &conf)
	fit.Devmem = fit.NIC
	if d.programs != "" {
		fit.Devmem = has(k, d.programs)
	} else if fit.NIC == nil {
		fit.Devmem = errors.Join(d.devmem(k), conf.lacks(d.options))
	}
	return fit
}

// Err is what is wrong with a kernel for guests that are to do device memory TCP, or need no more than an interface.
func (f *KernelFit) Err(devmem bool) error {
	err := f.NIC
	if devmem {
		err = f.Devmem
	}
	if f.Boot != nil {
		err = f.Boot
	}
	return err
}

// FixKernel says what to do about an error of KernelFit.Err.
func FixKernel(err error) string {
	switch {
	case errors.Is(err, errTooOld):
		return NewerKernel
	case errors.Is(err, errOption):
		return "build it with that, or give no --kernel, and one is fetched"
	}
	return "give its own modules by --modules; or no --kernel, and one is fetched"
}

var (
	errTooOld = errors.New("too old")
	errOption = errors.New("built without")
)

// drives says whether the kernel's driver takes the NIC.
func (d *driverOf) drives(k assets.Kernel, conf *kernelConfig) error {
	if k.Modules == "" {
		return d.builtIn(k, conf)
	}
	m, err := guestimages.FindModule(k.Modules, d.module)
	switch {
	case err != nil:
		return err
	case m.Path == "":
		return d.tooOld(k)
	case m.Release != "" && m.Release != k.Version:
		return fmt.Errorf("module %s of %s: %w: its is %s, this is %s", d.module, k.Modules, guestimages.ErrOtherKernel,
			m.Release, k.Version)
	case d.needs != "" && !m.Names(d.needs):
		return fmt.Errorf("its %s is %w: %s", d.module, errTooOld, d.old)
	}
	return nil
}

// devmem says whether a driver that takes the NIC has what device memory TCP wants. One that is built in is not looked
// into.
func (d *driverOf) devmem(k assets.Kernel) error {
	if k.Modules == "" {
		return nil
	}
	m, err := guestimages.FindModule(k.Modules, d.module)
	if err != nil || m.Path == "" || m.Names(d.devmemNeeds) {
		return err
	}
	return fmt.Errorf("its %s is %w for device memory TCP: %s", d.module, errTooOld, d.devmemOld)
}

// builtIn says whether a kernel that came without modules has the driver itself: by its configuration, else by its
// image. Where the one is not found and the other is packed in an unknown way, nothing is said.
func (d *driverOf) builtIn(k assets.Kernel, conf *kernelConfig) error {
	there := conf.options[d.option] == "y"
	if conf.path == "" {
		image, err := k.Unpacked()
		there = err != nil || bytes.Contains(image, []byte(d.text))
	}
	if !there {
		return fmt.Errorf("module %s: %w, nor built in", d.module, guestimages.ErrNoModule)
	}
	return d.tooOld(k)
}

// tooOld goes by the release, for a driver that is built in.
func (d *driverOf) tooOld(k assets.Kernel) error {
	if v := semverOf(k.Version); d.oldest != "" && semver.IsValid(v) && semver.Compare(v, "v"+d.oldest) < 0 {
		return fmt.Errorf("its %s is %w: %s", d.module, errTooOld, d.old)
	}
	return nil
}

// has says whether a kernel has a module, in a file or built in.
func has(k assets.Kernel, module string) error {
	if k.Modules == "" {
		return nil // it may be built in
	}
	m, err := guestimages.FindModule(k.Modules, module)
	if err == nil && m.Release != "" && m.Release != k.Version {
		return fmt.Errorf("module %s of %s: %w: its is %s, this is %s", module, k.Modules, guestimages.ErrOtherKernel,
			m.Release, k.Version)
	}
	return err
}

// semverOf makes "v6.12.95" of "6.12.95+deb12-cloud-amd64".
func semverOf(release string) string {
	end := strings.IndexFunc(release, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
	if end < 0 {
		end = len(release)
	}
	return "v" + release[:end]
}

// kernelConfig is the configuration of a kernel: "y" or "m" of each option that is set.
type kernelConfig struct {
	path    string // "": none was found
	options map[string]string
}

// maxConfig bounds a configuration; Debian's have 300 KB.
const maxConfig = 4 << 20

// readConfig finds a kernel's configuration where distributions and builds from source leave it.
func readConfig(k assets.Kernel) kernelConfig {
	dir := filepath.Dir(k.Image)
	places := []string{filepath.Join(dir, "config-"+k.Version), filepath.Join(k.Modules, "config")}
	if strings.HasSuffix(dir, "/arch/x86/boot") {
		places = append(places, filepath.Join(dir, "../../../.config"))
	}
	if k.Modules == "" {
		places = append(places[:1], places[2:]...)
	}
	for _, p := range places {
		f, err := os.Open(p)
		if err != nil {
			continue
		}
		c := kernelConfig{path: p, options: map[string]string{}}
		if st, err := f.Stat(); err == nil && st.Mode().IsRegular() && st.Size() <= maxConfig {
			for s := bufio.NewScanner(f); s.Scan(); {
				if name, value, ok := strings.Cut(s.Text(), "="); ok && strings.HasPrefix(name, "CONFIG_") {
					c.options[strings.TrimPrefix(name, "CONFIG_")] = value
				}
			}
		}
		_ = f.Close()
		if c.options["X86_64"] == "y" { // what it says it is
			return c
		}
	}
	return kernelConfig{}
}

// lacks says which of the options a kernel was built without. A module is not there before init.
func (c *kernelConfig) lacks(options []string) error {
	var list []string
	for _, o := range options {
		if c.path != "" && c.options[o] != "y" {
			list = append(list, "CONFIG_"+o)
		}
	}
	if list == nil {
		return nil
	}
	return fmt.Errorf("it is %w %s=y (%s)", errOption, strings.Join(list, "=y, "), c.path)
}
