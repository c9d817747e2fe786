package selftest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"vnic.dev/vnic/assets/selftests"
	"vnic.dev/vnic/cmd/vnic/internal/selftest/ktap"
	"vnic.dev/vnic/guest-images/guestroot"
	"vnic.dev/vnic/lab/machines"
)

// Do runs programs.
func Do(ctx context.Context, o *Options) (err error) {
	b := &bench{opt: o}
	defer func() { err = errors.Join(err, b.close()) }()
	o.Stage("looking for QEMU and a kernel")
	if b.im, err = machines.Fetch(ctx, o.Fetch, []string{o.NIC}, o.Note); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.im.Close()) }()
	want := selftests.Options{Options: o.Fetch, Kernel: b.im.Kernel, Source: o.Source, Patched: o.Patched}
	if mb := selftests.Megabytes(want); mb > 0 {
		o.Note("the tests and what they run on are not in the cache: about %d MB are downloaded, once", mb)
	}
	if b.images, err = selftests.Make(ctx, want); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.images.Close()) }()
	modules := append(slices.Clone(guestroot.Modules), b.im.Drivers(o.NIC)...)
	if err := b.im.Build(ctx, modules, guestroot.EnterName); err != nil {
		return err
	}
	if err := b.open(); err != nil {
		return err
	}
	for _, p := range o.Programs {
		if b.guest == nil {
			o.Stage("booting")
			start := time.Now()
			if err := b.boot(ctx); err != nil {
				return err
			}
			o.Tell(fmt.Sprintf("booted in %v", time.Since(start).Round(time.Millisecond)))
		}
		if err := b.program(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) program(ctx context.Context, p string) error {
	start := time.Now()
	if err := b.prepare(ctx); err != nil {
		return err
	}
	b.opt.Tell(fmt.Sprintf("prepared in %v", time.Since(start).Round(time.Millisecond)))
	start = time.Now()
	name, one, _ := strings.Cut(p, ":")
	dir, file := "/ks/drivers/net", name
	if rest, hw := strings.CutPrefix(name, "hw/"); hw {
		dir, file = dir+"/hw", rest
	}
	args := []string{"./" + file}
	if one != "" {
		args = append(args, "-t", one)
	}
	k := ktap.New(ktap.Options{Program: strings.TrimSuffix(file, ".py")}, func(e ktap.Event) {
		if e.Kind == ktap.Ended {
			b.opt.Tell(fmt.Sprintf("  %-5s %s %s", e.Case.Result, e.Case.Name, e.Case.Reason))
			if e.Case.Result.Bad() {
				for _, d := range e.Case.Diagnostics {
					b.opt.Tell("        " + d)
				}
			}
		}
	})
	var stderr bytes.Buffer
	pctx, cancel := context.WithTimeout(ctx, b.opt.Timeout)
	defer cancel()
	st, err := b.exec(pctx, dir, k, &stderr, args...)
	exit := ktap.Exit{Status: st.Exit(), TimedOut: pctx.Err() != nil}
	if err != nil && ctx.Err() == nil {
		exit.Lost = err.Error()
	}
	s := k.End(exit)
	b.opt.Tell(fmt.Sprintf("%s: %v in %v %v", p, s.Totals, time.Since(start).Round(time.Millisecond), s.Troubles))
	if stderr.Len() > 0 {
		b.opt.Tell(stderr.String())
	}
	for _, sp := range b.splats.take() {
		b.opt.Tell(fmt.Sprintf("kernel: %s %s %s", sp.Kind, sp.Title, sp.Function))
	}
	if exit.Lost != "" {
		return b.shut()
	}
	return ctx.Err()
}
