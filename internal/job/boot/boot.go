package boot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/devmemtool"
	"vnic.dev/vnic/internal/guesttools"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limit"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/terminal"
	"vnic.dev/vnic/internal/undo"
)

// runner is a run of `vnic boot`, or the making of an Image. close releases what it has.
type runner struct {
	*session.Session // nil before Do has opened it
	opt              *Options
	program          *program
	uroot            *guestimages.Userland // u-root's commands; nil: none
	images           *images
	tools            *packages // the packages of --tools; nil: none
	guests           []*guest
	logs             []*log // one for each guest; nil without LogDir
	undo             undo.Stack
	alive            limit.Guests // what guests do, for the error of a timeout

	terminal *terminal.Terminal
}

type images struct {
	*machine.Images
	files *os.File // the archive of the user's files
	size  int64    // of files, in bytes
}

// Do boots the guests, runs the program in them and returns its exit status: of several guests the first
// that is not 0 (0: there is none), in the order of the guests or, with EndFirstFailure, of time. When ctx ends, when
// the user leaves by Ctrl-] q, or after Options.Timeout, Do ends the guests and returns the cause as its error. The lab
// is closed when Do returns.
func Do(ctx context.Context, o Options) (status int, err error) {
	l := &runner{opt: &o}
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	ctx, end := limit.Context(ctx, o.Timeout, &l.alive)
	defer end()
	defer func() {
		if cerr := l.close(); cerr != nil && err == nil {
			err = fmt.Errorf("clearing up: %w", cerr)
		}
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
	}()
	l.takeTerminal(leave)
	o.Alive = &l.alive
	o.Fetch.Progress = l.alive.Fetching(o.Fetch.Progress)
	if err := l.fetchTools(ctx); err != nil {
		return 0, err
	}
	l.alive.Stage("looking for the program's files")
	if l.program, err = o.prepare(ctx, l.tools); err != nil {
		return 0, err
	}
	if err := errors.Join(o.checkGDB(), l.openLogs()); err != nil {
		return 0, err
	}
	if err := l.takeUserland(); err != nil {
		return 0, err
	}
	w, err := l.world()
	if err != nil {
		return 0, err
	}
	o.Stage = func(s session.Step) {
		if s.Stage == "boot" {
			o.stage("booting")
			l.alive.Stage("") // from now on l.alive has a state for each guest
		}
	}
	if l.Session, err = session.Open(ctx, &o.Common, w); err != nil {
		return 0, err
	}
	l.undo.Add(l.Session.Close)
	for i, p := range o.places(l.Lab) {
		l.guests = append(l.guests, &guest{Guest: l.Guests[i], place: p, runner: l})
	}
	if err := l.Boot(ctx); err != nil {
		return 0, err
	}
	if o.Booted != nil {
		o.Booted(l.guests[0].QEMU.Accel())
	}
	o.stage("")
	return l.run(ctx)
}

func (l *runner) world() (w session.World, err error) {
	o := l.opt
	if w.Services, err = o.gateway(); err != nil {
		return w, err
	}
	w.Services = append(w.Services, o.reserve)
	w.Lab, w.Flows, w.Storm, w.During = o.describe(), &o.Flows, o.Storm, "while its program ran"
	w.Images = func(ctx context.Context) (*machine.Images, error) {
		if err := l.fetch(ctx); err != nil {
			return nil, err
		}
		o.openPorts()
		return l.images.Images, nil
	}
	w.Started = func(ctx context.Context, g *session.Guest) error {
		return l.guests[slices.Index(l.Guests, g)].start(ctx)
	}
	for i, g := range w.Lab.Guests {
		m := o.machine(i)
		w.Guests = append(w.Guests, session.BootConfig{Title: g.Name, Memory: m.RAM, CPUs: m.CPUs, TimeLimit: forever,
			Complete: func(c *machine.Config) (func(), error) { return l.complete(c, i) }})
	}
	return w, nil
}

func (o *Options) stage(what string) {
	o.Alive.Stage(what)
	if o.Doing != nil {
		o.Doing(what)
	}
}

func (l *runner) find(ctx context.Context) error {
	if l.images != nil {
		return nil
	}
	o := l.opt
	o.stage("looking for QEMU and a kernel")
	im, err := machine.Fetch(ctx, o.Fetch, o.models(), o.Note)
	if err != nil {
		return err
	}
	l.images = &images{Images: im}
	l.undo.Add(im.Close)
	return nil
}

// fetch finds or fetches the kernel and, unless it is for an Image, QEMU, and makes the initramfs and the archive of
// the user's files.
func (l *runner) fetch(ctx context.Context) error {
	if err := l.find(ctx); err != nil {
		return err
	}
	o, im := l.opt, l.images
	o.stage("making the guests' initramfs")
	if err := im.CheckKernel(o.models(), false); err != nil {
		return err
	}
	if err := im.CheckKernel(o.kernelModels(), true); err != nil {
		o.Note("no device memory TCP: %v", err)
	}
	if err := l.initrd(ctx); err != nil {
		return err
	}
	return l.files()
}

func (o *Options) drivers(between string) string {
	var list []string
	for _, m := range o.models() {
		list = append(list, machine.SoftwareFor(m).Driver)
	}
	return strings.Join(list, between)
}

// initrd makes the initramfs. If the kernel lacks modules for devmem programs, it leaves them out. If the kernel came
// without modules, it adds neither these nor drivers of NICs, which may be built in.
func (l *runner) initrd(ctx context.Context) error {
	o, im := l.opt, l.images
	build := func(modules []string) error {
		return im.BuildImage(ctx, guestimages.Options{Modules: modules, Userland: l.uroot,
			Applets: []string{devmemtool.Name, guesttools.AppletName}})
	}
	all := machine.DriverModules(o.describe().Guests)
	fix := "give its own modules by --modules, with " + o.drivers(" and ") +
		" among them; or no --kernel, and one is fetched"
	if l.tools != nil {
		all = append(all, o.toolModules()...)
		fix += "; --tools needs " + strings.Join(o.toolModules(), ", ")
	}
	if im.Kernel.Modules == "" {
		return build(all)
	}
	for _, m := range o.models() {
		all = append(all, im.Drivers(m)...)
	}
	need := len(all)
	for _, model := range o.models() {
		for _, m := range machine.SoftwareFor(model).Modules {
			if !slices.Contains(all, m) {
				all = append(all, m)
			}
		}
	}
	err := build(all)
	if errors.Is(err, guestimages.ErrNoModule) && len(all) > need {
		if err1 := build(all[:need]); err1 == nil {
			o.Note("kernel %s has no module %s: no program of the guest can drive the second NIC", im.Kernel.Version,
				strings.Join(all[need:], ", "))
			return nil
		}
	}
	if machine.LacksModules(err) {
		return &assets.Missing{What: "kernel " + im.Kernel.Version, Err: err, Fix: fix}
	}
	return err
}

func (l *runner) files() error {
	if err := l.opt.checkFits(l.program.files.Bytes(), uint64(l.images.Size())); err != nil {
		return err
	}
	fd, err := unix.MemfdCreate("vnic-files", unix.MFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	l.images.files = os.NewFile(uintptr(fd), "vnic-files")
	l.undo.Add(l.images.files.Close)
	if err := l.program.files.Write(l.images.files); err != nil {
		return qemu.MemoryError("files for the guests", err)
	}
	l.images.size, err = l.images.files.Seek(0, io.SeekCurrent)
	return err
}

// errFirstFailure is the cause of the other programs' end after one has failed, with EndFirstFailure.
var errFirstFailure = errors.New("another guest's program has failed")

// run runs the program in the guests, and the lab file's script, until the programs have ended, and returns the exit
// status for Do. An error of a guest, other than a program's exit status, ends the other programs.
func (l *runner) run(ctx context.Context) (int, error) {
	status := make([]int, len(l.guests))
	streams := l.streams()
	eg, ctx := errgroup.WithContext(ctx)
	if file := l.opt.Lab; file != nil && len(file.Script) > 0 {
		playing, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() {
			l.Lab.Play(playing, file.Script, func(e lab.Event, err error) { l.opt.Note("%s", e.Told(err)) })
		})
		defer wg.Wait()
		defer stop()
	}
	ends := &ends{runner: l}
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	for i, g := range l.guests {
		eg.Go(func() (err error) {
			status[i], err = g.run(running, streams[i])
			switch {
			case err == nil:
				ends.tell(g, status[i], func() { stop(errFirstFailure) })
			case errors.Is(err, errFirstFailure):
				return nil
			}
			return err
		})
	}
	if err := eg.Wait(); err != nil {
		return 0, err
	}
	return cmp.Or(ends.first, cmp.Or(status...)), nil
}

// close gives the terminal back, ends the guests, closes the lab, and releases the rest.
func (l *runner) close() error {
	if l.terminal != nil {
		l.terminal.Close()
	}
	var wg sync.WaitGroup
	for _, g := range l.guests {
		wg.Go(g.powerOff)
	}
	wg.Wait()
	return l.undo.All()
}
