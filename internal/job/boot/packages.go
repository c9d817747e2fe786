package boot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/guesttools"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/machine/assets/selftests"
	"vnic.dev/vnic/internal/machine/assets/toolimage"
	"vnic.dev/vnic/internal/machine/qemu"
)

type packages struct {
	set   toolimage.Set
	image *toolimage.Image
	tests *selftests.Images // with ncdevmem; nil: without
}

// ncdevmem is that program's path in the guest, where the image of the kernel's tests is mounted at testsDir.
const (
	testsDir = "/ks"
	ncdevmem = testsDir + "/drivers/net/hw/ncdevmem"
)

// fetchTools finds or makes the images of --tools, if it names any packages; before that it calls find.
func (l *runner) fetchTools(ctx context.Context) error {
	o := l.opt
	set, err := toolimage.Parse(o.Tools)
	if err != nil || len(set.Words) == 0 {
		return err
	}
	if err := l.find(ctx); err != nil {
		return err
	}
	o.stage("looking for tools")
	t := &packages{set: set}
	t.image, err = toolimage.Fetch(ctx, o.Fetch, set, l.images.Kernel.Version, func(bytes int64) {
		o.Note("--tools %v: %d MB are downloaded, this once", set, (bytes+1<<20-1)>>20)
	})
	if errors.Is(err, assets.ErrNoPackage) {
		return &UseError{fmt.Errorf("%w: name packages as Debian does, or none, net, python, ncdevmem", err)}
	}
	if err != nil {
		return err
	}
	l.tools = t
	l.undo.Add(t.close)
	for _, n := range t.image.Notes {
		o.Note("%s", n)
	}
	if !set.NCDevmem {
		return nil
	}
	so := selftests.Options{Options: o.Fetch, Kernel: l.images.Kernel}
	if n := selftests.Megabytes(so); n > 0 && !o.Fetch.Offline {
		o.Note("--tools ncdevmem: it is built of the kernel's source, for which some %d MB are downloaded, this once", n)
	}
	if t.tests, err = selftests.Make(ctx, so); err != nil {
		return fmt.Errorf("--tools ncdevmem: %w", err)
	}
	for _, n := range t.tests.Notes {
		o.Note("%s", n)
	}
	return nil
}

func (t *packages) has(name string) bool {
	return t != nil && (t.image.Has(name) || t.tests != nil && name == "ncdevmem")
}

// nor returns the part of an error that names the packages in which a program was not found; "" without packages.
func (t *packages) nor() string {
	if t == nil {
		return ""
	}
	return fmt.Sprintf(", nor in --tools %v", t.set)
}

func (t *packages) files() (list []string) {
	if t != nil {
		list = append(list, t.image.Path)
		if t.tests != nil {
			list = append(list, t.tests.Tests)
		}
	}
	return list
}

func serial(i int) string { return fmt.Sprintf("vnic-tools-%d", i) }

func (o *Options) toolModules() []string {
	if o.image {
		return guesttools.FileModules
	}
	return guesttools.Modules
}

// bring adds the images and their configuration to the guest's files, for a QEMU that vnic does not start.
func (t *packages) bring(files *guestimages.Overlay) error {
	if t == nil {
		return nil
	}
	c := t.config()
	for i, path := range t.files() {
		c.Images[i] = guesttools.Image{File: fmt.Sprintf("/vnic/tools-%d.squashfs", i), At: c.Images[i].At}
		if err := files.Ours(path, c.Images[i].File); err != nil {
			return err
		}
	}
	b, err := json.MarshalIndent(c, "", "\t")
	if err == nil {
		files.Text(guesttools.ConfigPath, string(b))
	}
	return err
}

// disks opens the images for a guest; the caller calls closeDisks.
func (t *packages) disks() (list []qemu.Disk, err error) {
	for i, path := range t.files() {
		f, err := os.Open(path)
		if err != nil {
			closeDisks(list)
			return nil, err
		}
		list = append(list, qemu.Disk{File: f, Serial: serial(i), ReadOnly: true})
	}
	return list, nil
}

func closeDisks(list []qemu.Disk) {
	for _, d := range list {
		_ = d.File.Close()
	}
}

// config returns the images that the guest mounts, and their programs.
func (t *packages) config() (c guesttools.Config) {
	for i := range t.files() {
		c.Images = append(c.Images, guesttools.Image{Serial: serial(i)})
	}
	c.Programs = append(c.Programs, t.image.Programs...)
	if t.tests != nil {
		c.Images[1].At = testsDir
		c.Programs = append(c.Programs, guesttools.Program{Name: "ncdevmem", Path: ncdevmem})
	}
	return c
}

func (t *packages) close() error {
	err := t.image.Close()
	if t.tests != nil {
		err = errors.Join(err, t.tests.Close())
	}
	return err
}
