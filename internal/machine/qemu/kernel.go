package qemu

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/mod/semver"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/machine/assets"
)

// NewerKernel is advice for a kernel that is too old.
const NewerKernel = "take a newer one (gve: 6.12 for an ordinary NIC, 7.2 for device memory TCP; 6.12, 7.2 and 7.3 " +
	"are tested), or none, and one is fetched"

// KernelFit has what a kernel's files say against its use; a nil field: nothing.
type KernelFit struct {
	Boot   error // why no guest can boot
	NIC    error // why the kernel has no usable driver for the NIC
	Devmem error // why there is no device memory TCP
}

// driverOf describes a NIC's driver.
type driverOf struct {
	module string // name
	option string // of the kernel
	text   string // in the image of a kernel with the driver built in
	// A module that imports the symbol in needs ("": any module) is new enough for the NIC; if programs is "", one that
	// imports the symbol in devmemNeeds is new enough for device memory TCP.
	needs, devmemNeeds string
	old, devmemOld     string // what a driver that is not new enough lacks
	oldest             string // the first release whose built-in driver is new enough; "": any release
	// The module that programs with device memory TCP of their own need; "": they use the kernel's driver.
	programs string
	options  []string // of the kernel, for device memory TCP by its driver
}

// drivers are by NIC model. The symbols for gve distinguish its modules of Linux 6.1, 6.12, 7.2 and 7.3.
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

// bootOptions are the kernel options that must be built in so that a guest boots.
var bootOptions = []string{"BLK_DEV_INITRD", "BINFMT_ELF", "PROC_FS", "SYSFS", "DEVTMPFS", "PCI", "NET", "INET",
	"FUTEX", "EPOLL"}

// FitOf checks a kernel for NICs of a model, "virtio" or "gve", by its modules, its configuration, or its image.
func FitOf(k assets.Kernel, nic string) KernelFit {
	d := drivers[nic]
	var fit KernelFit
	conf := readConfig(k)
	fit.Boot = conf.lacks(bootOptions)
	fit.NIC = d.drives(k, &conf)
	fit.Devmem = fit.NIC
	switch {
	case d.programs == "" && fit.NIC == nil:
		fit.Devmem = errors.Join(d.devmem(k), conf.lacks(d.options))
	case d.programs != "" && k.Modules == "":
		fit.Devmem = nil // it may be built in
	case d.programs != "":
		_, fit.Devmem = find(k, d.programs)
	}
	return fit
}

// Err returns why a guest cannot boot the kernel, or else why it cannot use device memory TCP (devmem) or an ordinary
// interface; nil: nothing speaks against it.
func (f *KernelFit) Err(devmem bool) error {
	err := f.NIC
	if devmem {
		err = f.Devmem
	}
	return cmp.Or(f.Boot, err)
}

// FixKernel returns advice for an error of Err.
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

// drives returns an error if the kernel has no driver that supports the NIC, or the driver's module cannot be used.
func (d *driverOf) drives(k assets.Kernel, conf *kernelConfig) error {
	if k.Modules == "" {
		return d.builtIn(k, conf)
	}
	m, err := find(k, d.module)
	switch {
	case err != nil:
		return err
	case m.Path == "":
		return d.tooOld(k)
	case d.needs != "" && !m.Names(d.needs):
		return fmt.Errorf("its %s is %w: %s", d.module, errTooOld, d.old)
	}
	return nil
}

// devmem returns an error if the driver is a module without device memory TCP, or one that cannot be read. It returns
// nil for a built-in driver, which cannot be examined.
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

// builtIn returns an error if the driver is not built in, by configuration or image, or is too old. If neither
// can be read, the driver counts as built in.
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

// tooOld returns an error if a built-in driver is too old, which the kernel's release tells.
func (d *driverOf) tooOld(k assets.Kernel) error {
	if v := semverOf(k.Version); d.oldest != "" && semver.IsValid(v) && semver.Compare(v, "v"+d.oldest) < 0 {
		return fmt.Errorf("its %s is %w: %s", d.module, errTooOld, d.old)
	}
	return nil
}

// find finds a module as a file or built in; one for another kernel is an error.
func find(k assets.Kernel, module string) (*guestimages.ModuleFile, error) {
	m, err := guestimages.FindModule(k.Modules, module)
	if err == nil && m.Release != "" && m.Release != k.Version {
		err = fmt.Errorf("module %s of %s: %w: its is %s, this is %s", module, k.Modules, guestimages.ErrOtherKernel,
			m.Release, k.Version)
	}
	return m, err
}

// semverOf returns "v6.12.95" for "6.12.95+deb12-cloud-amd64".
func semverOf(release string) string {
	rest := strings.TrimLeft(release, ".0123456789")
	return "v" + strings.TrimSuffix(release, rest)
}

// kernelConfig is a kernel's configuration: options without CONFIG_, with their values, as "y".
type kernelConfig struct {
	path    string // "": not found
	options map[string]string
}

// maxConfig is the size of the largest configuration that is read, in bytes.
const maxConfig = 4 << 20

// readConfig finds a configuration for x86-64 where distributions and builds put a kernel's; zero: none.
func readConfig(k assets.Kernel) kernelConfig {
	dir := filepath.Dir(k.Image)
	places := []string{filepath.Join(dir, "config-"+k.Version)}
	if k.Modules != "" {
		places = append(places, filepath.Join(k.Modules, "config"))
	}
	if strings.HasSuffix(dir, "/arch/x86/boot") {
		places = append(places, filepath.Join(dir, "../../../.config"))
	}
	for _, p := range places {
		st, err := os.Stat(p)
		if err != nil || !st.Mode().IsRegular() || st.Size() > maxConfig {
			continue
		}
		text, _ := os.ReadFile(p)
		c := kernelConfig{path: p, options: map[string]string{}}
		for line := range strings.Lines(string(text)) {
			if line, ok := strings.CutPrefix(line, "CONFIG_"); ok {
				name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
				c.options[name] = value
			}
		}
		if c.options["X86_64"] == "y" { // the kernel is for x86-64
			return c
		}
	}
	return kernelConfig{}
}

// lacks returns an error with the options that are not built in; nil: none, or no configuration was found.
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
