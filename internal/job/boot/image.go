package boot

import (
	"context"
	"io"
	"os"
	"strings"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/guesttools"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/machine/qemu"
)

// Image has the files from which a guest boots under a QEMU that vnic does not start. The guest configures
// its network by itself and runs the program, or a shell, on its console.
type Image struct {
	Kernel assets.Kernel
	Append string

	runner *runner
	config agent.Config
}

// NewImage makes an Image. Of the options for machines and networks it uses only NIC, GPUDriver, Memory,
// GPUMemory and Append; Guests must be 1 and Lab nil. The caller closes the image.
func NewImage(ctx context.Context, o Options) (i *Image, err error) {
	l := &runner{opt: &o}
	o.image, o.Fetch.KernelOnly = true, true
	defer func() {
		if err != nil {
			_ = l.close()
		}
	}()
	if err := l.fetchTools(ctx); err != nil {
		return nil, err
	}
	if l.program, err = o.prepare(ctx, l.tools); err != nil {
		return nil, err
	}
	if err := l.takeUserland(); err != nil {
		return nil, err
	}
	if err := l.tools.bring(l.program.files); err != nil {
		return nil, o.explain("--tools "+o.Tools, err)
	}
	if err := l.fetch(ctx); err != nil {
		return nil, err
	}
	model, _ := lab.LookupModel(o.NIC)
	model = model.With(o.GPUDriver)
	software := machine.SoftwareFor(o.NIC)
	if l.images.Kernel.Modules == "" {
		o.Note("kernel %s came without modules: unless it has %s built in, its guest has no network: give them by --modules",
			l.images.Kernel.Version, software.Driver)
	}
	p := l.program
	i = &Image{Kernel: l.images.Kernel,
		Append: qemu.KernelArgs(model.Node, strings.TrimSpace(software.KernelArgs+" "+o.Append)), runner: l}
	i.config = agent.Config{Modules: l.images.Modules, HugePages: software.HugePages, Node0: model.Node,
		Alone: &agent.Alone{
			Path: p.path, Args: p.args, Env: append(o.imageEnv(l.tools), p.env...), Dir: p.dir,
			Shell: len(o.Command) == 0, Driver: software.Driver, OwnDriver: !model.Kernel}}
	if n := limits.Slow(); n > 1 {
		i.config.Slow = n
	}
	return i, nil
}

// imageEnv returns the part of the environment of an image's program that is known before its guest boots.
func (o *Options) imageEnv(tools *packages) []string {
	env := append(plainEnv(tools), `PS1=\h:\w\$ `, "TERM="+imageTerms[0], "VNIC_NIC="+o.NIC)
	if v, ok := os.LookupEnv("LD_LIBRARY_PATH"); ok {
		env = append(env, "LD_LIBRARY_PATH="+v)
	}
	return append(append(env, limits.Environ()...), o.given()...)
}

// imageTerms are the values of TERM whose terminfo an image with a shell gets, as far as this machine has it. TERM is
// the first one, which suits most terminals.
var imageTerms = strings.Fields("xterm xterm-256color screen screen-256color tmux-256color linux vt100 vt220")

// plainEnv returns the environment that any program expects, with the programs of t in PATH, unless t is nil.
func plainEnv(t *packages) []string {
	path := guestimages.Path
	if t != nil {
		path = guesttools.BinDir + ":" + path
	}
	return []string{"PATH=" + path, "HOME=/root", "USER=root",
		"LOGNAME=root", "SHELL=/bin/sh", "LANG=C.UTF-8"}
}

func (o *Options) given() (env []string) {
	for _, e := range o.Env {
		if !strings.Contains(e, "=") {
			e += "=" + os.Getenv(e)
		}
		env = append(env, e)
	}
	return env
}

// WriteInitrd writes the initramfs, with the user's files.
func (i *Image) WriteInitrd(w io.Writer) error {
	r, err := i.runner.images.Initrd(i.config)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	if _, err := io.Copy(w, r); err != nil {
		return err
	}
	_, err = io.Copy(w, io.NewSectionReader(i.runner.images.files, 0, i.runner.images.size))
	return err
}

// Close releases the image's files.
func (i *Image) Close() error { return i.runner.close() }
