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

// KernelFit reports what a kernel can be used for, by its files. nil: nothing speaks against it.
type KernelFit struct {
	Boot   error // no guest can boot
	NIC    error // the driver does not support the NIC
	Devmem error // no device memory TCP
}

// driverOf describes a NIC's driver.
type driverOf struct {
	module string // name
	option string // of the kernel
	text   string // in a kernel with the driver built in
	// A driver that imports needs is new enough for the NIC, one that imports devmemNeeds for device memory TCP.
	needs, devmemNeeds string
	old, devmemOld     string   // what it lacks otherwise
	oldest             string   // release, for built-in drivers
	programs           string   // module of devmem programs; "": none
	options            []string // for device memory TCP
}

// The symbols for gve are from modules of Linux 6.1, 6.12, 7.2 and 7.3 (docs/specs/gve.md).
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

// bootOptions must be built in.
var bootOptions = []string{"BLK_DEV_INITRD", "BINFMT_ELF", "PROC_FS", "SYSFS", "DEVTMPFS", "PCI", "NET", "INET",
	"FUTEX", "EPOLL"}

// FitOf checks a kernel for NICs of a model, "virtio" or "gve", by its modules, its configuration, or its
// image. It reads at most two modules.
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

// Err returns what is wrong with a kernel, for device memory TCP or an ordinary interface.
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

// drives returns an error if the kernel's driver does not support the NIC.
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

// devmem returns an error if the driver lacks device memory TCP; a built-in one cannot be examined.
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

// tooOld judges a built-in driver by the kernel's release.
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

// kernelConfig is a kernel's configuration: options with their values, as "y".
type kernelConfig struct {
	path    string // "": not found
	options map[string]string
}

// maxConfig bounds a configuration's size.
const maxConfig = 4 << 20

// readConfig finds a kernel's configuration where distributions and builds put it.
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
		if c.options["X86_64"] == "y" { // for x86-64
			return c
		}
	}
	return kernelConfig{}
}

// lacks returns an error with the options that are not built in; nil if no configuration was found.
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
