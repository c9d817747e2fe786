package boot

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sync"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/machine/assets"
)

// userland returns a function that finds or builds u-root's commands, once.
func (o *Options) userland(ctx context.Context) func() (*guestimages.Userland, error) {
	return sync.OnceValues(func() (*guestimages.Userland, error) {
		dir, err := assets.CacheDir(o.Fetch)
		if err != nil {
			return nil, err
		}
		u, err := guestimages.FindUserland(ctx, guestimages.UserlandOptions{CacheDir: dir, Offline: o.Fetch.Offline,
			Building: func() {
				o.Note("building u-root's commands for the guests, this once: about a minute, %d MB are downloaded",
					guestimages.UserlandMegabytes)
				o.stage("building u-root's commands")
			}})
		return u, assets.CacheError(dir, err)
	})
}

// takeUserland finds or builds u-root's commands. Without them guests boot, too: it notes ErrNoUserland, and returns
// nil.
func (l *runner) takeUserland() (err error) {
	if l.uroot, err = l.program.userland(); errors.Is(err, guestimages.ErrNoUserland) {
		l.opt.Note("%v: guests have what this machine has", err)
		return nil
	}
	return err
}

// ofUserland selects u-root's command for the guest's path where, which is in UserlandDir or /bin/sh. If there is none,
// it returns the error otherwise, with the userland's error if it has one.
func (p *program) ofUserland(name, where string, otherwise error) error {
	base := path.Base(where)
	if path.Dir(where) != guestimages.UserlandDir && where != "/bin/sh" {
		return otherwise
	}
	u, err := p.userland()
	if err != nil {
		return fmt.Errorf("%w; %w", otherwise, err)
	}
	if !u.Has(base) {
		return otherwise
	}
	p.path = where
	if shells[base] {
		p.tools()
	}
	return nil
}
