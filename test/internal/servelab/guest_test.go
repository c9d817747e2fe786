package servelab

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/machinetest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/test/internal/stranger"
)

type image struct {
	*bench
	*machine.Images
	initrd string
}

// prepare makes the image of a guest: with vnic's programs, or, if stock is set, with this package's program and files.
func (b *bench) prepare(files map[string]string) *image {
	b.Helper()
	soft := machine.SoftwareFor(b.nic)
	conf := agent.Config{Modules: soft.Modules, HugePages: soft.HugePages, Node0: b.nic == lab.GVE}
	what := guestimages.Options{Applets: []string{"devmem"}}
	if b.stock {
		modules := append(slices.Clone(stockModules), soft.Driver)
		slices.Sort(modules)
		modules = slices.Compact(modules)
		conf = agent.Config{Modules: modules}
		what = guestimages.Options{Modules: modules, Files: files,
			Program: machinetest.Program(b.T, "vnic.dev/vnic/test/internal/servelab/guest")}
	}
	im := &image{bench: b, Images: machinetest.Images(b.T, []string{b.nic}, what),
		initrd: filepath.Join(b.dir, "initrd")}
	testkit.OK(b, stranger.WriteInitrd(im.Images, conf, im.initrd))
	return im
}

// guest is a guest whose QEMU the test, and not vnic, has started.
type guest struct {
	*stranger.Guest
	addr string
}

type pair [2]*guest

func (p *pair) kill() {
	for _, g := range p {
		if g != nil {
			g.kill()
		}
	}
}

// bootAll boots both guests. The caller must kill them, on an error, too; a guest that did not boot is then nil.
func (im *image) bootAll(ctx context.Context, s *server) (*pair, error) {
	var p pair
	errs := make(chan error)
	for i := range p {
		go func() {
			var err error
			p[i], err = im.boot(ctx, s, i)
			errs <- err
		}()
	}
	return &p, errors.Join(<-errs, <-errs)
}

func (im *image) boot(ctx context.Context, s *server, i int) (*guest, error) {
	p := s.rep.Ports[i]
	addr, _, _ := strings.Cut(p.Addr4, "/")
	args, words := slices.Concat(p.QEMU, im.qemuArgs), s.rep.KernelArgs+" "+im.kernelArgs
	if im.legacy {
		words += forceLegacy
		for k := range args {
			args[k] = strings.Replace(args[k], "disable-legacy=on", legacyNIC[i], 1)
		}
	}
	g, err := stranger.Boot(ctx, im.Images, stranger.Config{Dir: im.dir, Name: strconv.Itoa(i), Initrd: im.initrd,
		Append: words, Args: args})
	if err != nil {
		return nil, err
	}
	return &guest{g, addr}, nil
}

func (g *guest) kill() { g.Kill() }
