package selftest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/guestroot"
	"vnic.dev/vnic/internal/job/selftest/expect"
	"vnic.dev/vnic/internal/job/selftest/ktap"
	"vnic.dev/vnic/internal/job/selftest/results"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/assets/selftests"
	"vnic.dev/vnic/internal/machine/qemu"
)

// Do runs the programs of o.Programs, or without any all but NotForUs. With an error it may return the results so far.
func Do(ctx context.Context, o *Options) (run *results.Run, err error) {
	b := &bench{opt: o, began: time.Now()}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := errors.Join(o.checkGDB(), b.openLogs()); err != nil {
		return nil, err
	}
	if err := b.fetch(ctx); err != nil {
		return nil, err
	}
	list, err := choose(listed(b.images.List), o.Programs)
	if err != nil {
		return nil, &UsageError{err}
	}
	if err := b.checkCases(list); err != nil {
		return nil, &UsageError{err}
	}
	if err := b.open(); err != nil {
		return nil, err
	}
	run = b.describeRun()
	if b.expected, err = expect.Of(run.Model, run.Kernel); err != nil {
		b.expected, err = nil, nil // without expectations no case is left out
	}
	for range max(1, o.Repeat) {
		for _, p := range list {
			for _, column := range b.columns(&p) {
				res, err := b.program(ctx, &p, column)
				if b.Session != nil {
					run.Accel = string(b.guest().Accel())
				}
				if res != nil {
					run.Programs = append(run.Programs, *res)
					if !b.ended { // if it is set, program has called Ended, before the user's shell
						o.Ended(res)
					}
				}
				if err != nil || b.ended {
					return run, err
				}
			}
		}
	}
	return run, nil
}

// checkCases returns an error if a case or pattern that the user named matches none of its program's cases. With
// Source or Tests, and for programs whose cases are unknown, it checks nothing.
func (b *bench) checkCases(list []program) error {
	suite, err := expect.SuiteOf(b.im.Kernel.Version)
	if err != nil || b.opt.Source != "" || b.opt.Tests != "" {
		return nil
	}
	for _, p := range list {
		cases := suite.Programs[p.name]
		for _, one := range p.only {
			if len(cases) > 0 && !slices.ContainsFunc(cases, func(c string) bool { return expect.Asked(c, []string{one}) }) {
				return fmt.Errorf("%s:%s: no such case: vnic selftest --list %s names them", p.name, one, p.name)
			}
		}
	}
	return nil
}

// UsageError is an error in Options.Programs, for example an unknown program.
type UsageError struct{ error }

func (e *UsageError) Unwrap() error { return e.error }

// List returns the names of the tests' programs, each name in NotForUs with the reason. If o.Programs is not empty,
// List returns the known cases that o.Programs names, as PROGRAM:CASE.
func List(ctx context.Context, o *Options) (list []string, err error) {
	b := &bench{opt: o}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.fetch(ctx); err != nil {
		return nil, err
	}
	all := listed(b.images.List)
	if len(o.Programs) == 0 {
		for _, name := range all {
			if why := NotForUs[name]; why != "" {
				name = fmt.Sprintf("%-30s not run unless it is named: %s", name, why)
			}
			list = append(list, name)
		}
		return list, nil
	}
	chosen, err := choose(all, o.Programs)
	if err != nil {
		return nil, &UsageError{err}
	}
	suite, err := expect.SuiteOf(b.im.Kernel.Version)
	if err != nil {
		return nil, fmt.Errorf("the cases of this kernel's tests are not known: %w", err)
	}
	for _, p := range chosen {
		for _, c := range suite.Programs[p.name] {
			if expect.Asked(c, p.only) {
				list = append(list, p.name+":"+c)
			}
		}
	}
	return list, nil
}

func (b *bench) fetch(ctx context.Context) (err error) {
	o := b.opt
	o.Doing("looking for QEMU and a kernel")
	models := []string{o.NIC}
	if o.Device != "" {
		models = nil
	}
	fetch := o.Fetch
	fetch.Whole = true // no partial trees: the tests' images need all modules of the kernel
	if b.im, err = machine.Fetch(ctx, fetch, models, o.Note); err != nil {
		return err
	}
	want := selftests.Options{Options: o.Fetch, Kernel: b.im.Kernel, Source: o.Source, Tests: o.Tests, Patched: o.Patched}
	if mb := selftests.Megabytes(want); mb > 0 {
		o.Note("the kernel's tests and what they run on are not in the cache: %d MB are downloaded, once", mb)
	}
	if b.images, err = selftests.Make(ctx, want); err != nil {
		return err
	}
	for _, n := range b.images.Notes {
		o.Note("%s", n)
	}
	modules := slices.Concat(guestroot.Modules, devices[o.Device])
	if o.Device == "" {
		modules = append(modules, b.im.Drivers(o.NIC)...)
	} else if guestimages.HasModule(b.im.Kernel.Modules, "virtio_pci") {
		modules = append([]string{"virtio_pci"}, modules...)
	}
	return b.im.Build(ctx, modules, guestroot.ModprobeName)
}

func (b *bench) describeRun() *results.Run {
	model, device, queues := b.opt.NIC, "vnic", b.opt.Queues
	switch {
	case b.opt.Device != "":
		model, device, queues = b.opt.Device, "qemu", 1
	case b.opt.XDP:
		model += "-xdp"
	}
	return &results.Run{Schema: results.Schema, Model: model, Device: device, Queues: queues, Kernel: b.im.Kernel.Version,
		Versions: map[string]string{"qemu": b.im.QEMU.Version, "tests": b.images.Source}, Programs: []results.Program{}}
}

func (b *bench) columns(p *program) []results.Column {
	list := []results.Column{results.Unmodified}
	if b.opt.Patched && len(p.patches()) > 0 {
		list = append(list, results.Patched)
	}
	return list
}

// withoutPatches returns a result without cases if the column is Patched and a patch of the program, or one that it
// needs, does not apply; otherwise nil.
func (b *bench) withoutPatches(p *program, column results.Column) *results.Program {
	if column != results.Patched {
		return nil
	}
	var left []string
	for _, name := range p.patches() {
		if slices.Contains(b.images.Left, name) {
			left = append(left, name)
		}
	}
	if left == nil {
		return nil
	}
	return &results.Program{Name: p.name, Column: column, Left: left, Only: p.only, Planned: -1, Cases: []results.Case{}}
}

// program runs a program in a column, unless withoutPatches has a result. It boots a guest if there is none. If it
// returns no error and does not set b.ended, the next program can run.
func (b *bench) program(ctx context.Context, p *program, column results.Column) (*results.Program, error) {
	o := b.opt
	if res := b.withoutPatches(p, column); res != nil {
		return res, nil
	}
	if err := b.wants(p); err != nil {
		return nil, err
	}
	if b.Session == nil {
		o.Doing("booting")
		if err := b.boot(ctx); err != nil {
			return nil, err
		}
	}
	o.Doing(p.name + ": preparing")
	if err := b.prepare(ctx); err != nil {
		return nil, err
	}
	if b.first == 0 {
		o.Doing("") // the first test begins
		b.first = time.Since(b.began)
		o.Note("the first test starts after %.1f s (%s)", b.first.Seconds(), b.guest().Accel())
	}
	root := "/ks"
	if column == results.Patched {
		root = "/patched"
	}
	leftOut, names := b.leaveOut(p, column)
	r := results.NewRecorder(results.Options{Name: p.name, Column: column, Only: p.only, Cases: names,
		Event: func(e ktap.Event) { o.event(p, column, e) }})
	b.splats.to(r.Complaint)
	before := b.payload()
	log, err := b.log(p, column)
	if err != nil {
		return nil, err
	}
	exit, stderr, stopped := b.runProgram(ctx, path.Join(root, p.dir()), p, leftOut, io.MultiWriter(r, log))
	if err := log.Close(); err != nil {
		return nil, err
	}
	b.splats.to(nil)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	res := r.End(exit)
	if len(stderr) > 0 {
		res.Diagnostics = append(res.Diagnostics, lastLines(stderr, maxStderr)...)
	}
	if p.isDevmem() {
		res.Devmem = b.payload().since(before, &res)
	}
	if o.Shell && exit.Lost == "" && failed(&res) {
		b.ended = true
		o.Ended(&res)
		return &res, b.shell(ctx, path.Join(root, p.dir()), p)
	}
	if stopped != nil {
		return &res, stopped
	}
	if exit.Lost != "" || slices.ContainsFunc(res.Splats, func(s results.Splat) bool { return s.Fatal() }) {
		o.Note("%s: the kernel is not fit for another program: the next one gets a fresh boot", p.name)
		return &res, b.shut()
	}
	return &res, nil
}

func failed(p *results.Program) bool { return p.Count().Bad() > 0 || len(p.Splats) > 0 }

// leaveOut returns the program's cases that are expected to end the guest (expect.LeftOut), and the names of its other
// known cases. Without expectations, with Source or Tests, and if the user named cases of the program, it returns nil.
func (b *bench) leaveOut(p *program, column results.Column) (leftOut, names []string) {
	if b.expected == nil || b.opt.Source != "" || b.opt.Tests != "" || p.only != nil {
		return nil, nil
	}
	leftOut = b.expected.LeftOut(p.name, column)
	for _, n := range b.expected.Suite.Programs[p.name] {
		if !slices.Contains(leftOut, n) {
			names = append(names, n)
		}
	}
	return leftOut, names
}

// maxStderr bounds how many lines at the end of a program's standard error are kept.
const maxStderr = 50

// tailBytes is how many bytes at the end of standard error are searched for these lines.
const tailBytes = 64 << 10

func lastLines(text []byte, n int) (list []string) {
	for line := range strings.Lines(string(text)) {
		if line = ktap.Clean([]byte(strings.TrimRight(line, "\n"))); line != "" {
			list = append(list, line)
		}
	}
	return list[max(0, len(list)-n):]
}

// runProgram runs a program until it ends, its time is over, ctx ends, its output cannot be written, or the guest ends.
// It returns an error only if KVM may have ended the guest: KVM could end the next guest, too.
func (b *bench) runProgram(ctx context.Context, dir string, p *program, leftOut []string,
	out io.Writer) (ktap.Exit, []byte, error) {
	args := []string{"./" + path.Base(p.name)}
	for _, c := range p.only {
		args = append(args, "-t", c)
	}
	for _, c := range leftOut {
		args = append(args, "-T", c)
	}
	stderr := agent.Tail{Max: tailBytes}
	limit := limits.Selftest.Unless(b.opt.Timeout)
	late := fmt.Errorf("not done within %v", limit)
	pctx, cancel := context.WithTimeoutCause(ctx, limit, late)
	defer cancel()
	st, err := b.exec(pctx, dir, out, &stderr, args...)
	switch {
	case errors.Is(err, late) || pctx.Err() != nil:
		return ktap.Exit{TimedOut: true, Status: 124}, stderr.Bytes(), nil
	case err != nil:
		lost := ktap.Exit{Lost: err.Error()}
		if e := (*qemu.RunError)(nil); !errors.As(err, &e) || !e.KVM {
			err = nil
		}
		return lost, stderr.Bytes(), err
	}
	return ktap.Exit{Status: st.Exit()}, stderr.Bytes(), nil
}

// payload has the tested NIC's bytes of payload in GPU memory and elsewhere; with Options.Device both are 0.
type payload struct{ device, host uint64 }

func (b *bench) payload() (x payload) {
	if b.Session == nil || len(b.Lab.Ports()) == 0 {
		return x
	}
	c, err := b.Lab.Port(0).NIC().PortCounters()
	if err != nil {
		return x
	}
	return payload{c.Rx.DeviceBytes + c.Rx.GPUFileBytes + c.Tx.DeviceBytes + c.Tx.GPUFileBytes,
		c.Rx.HostBytes + c.Tx.HostBytes}
}

// since judges a program that uses device memory, which ran between the readings before and x: if a case passed, the
// NIC must have counted payload in device memory meanwhile.
func (x payload) since(before payload, p *results.Program) *results.Devmem {
	d := &results.Devmem{DeviceBytes: x.device - before.device, HostBytes: x.host - before.host}
	switch {
	case d.DeviceBytes > 0:
		d.Proved = true
	case p.Count()[ktap.Pass] > 0:
		d.Why = "cases passed, and the NIC saw no payload in device memory"
	default:
		d.Proved, d.Why = true, "no case passed: there is nothing to prove"
	}
	return d
}
