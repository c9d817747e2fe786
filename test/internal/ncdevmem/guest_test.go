package ncdevmem

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/newc"
)

// programs returns an archive of the test's programs, their libraries and these files. A guest gets it beside the
// image that vnic caches: no cached image must contain ncdevmem, which is built from the kernel's source.
func programs(tools string, files map[string][]byte) (io.Reader, error) {
	list := []newc.File{newc.Link("bin/sh", "/bin/busybox")}
	for _, name := range []string{"nc", "ip", "cat", "dmesg", "grep", "usleep"} {
		list = append(list, newc.Link("bin/"+name, "/bin/busybox"))
	}
	from := map[string]string{}
	for _, name := range []string{"ncdevmem", "busybox", "ethtool"} {
		from["bin/"+name] = filepath.Join(tools, name)
	}
	libs, err := filepath.Glob(filepath.Join(tools, "lib", "*"))
	if err != nil {
		return nil, err
	}
	for _, path := range libs {
		for _, dir := range []string{"lib/", "lib64/"} { // ethtool names its loader in lib64; the loader searches lib
			from[dir+filepath.Base(path)] = path
		}
	}
	for name, path := range from {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		list = append(list, newc.Text(name, string(b), 0o755))
	}
	for name, b := range files {
		list = append(list, newc.Text(name, string(b), 0o644))
	}
	var b bytes.Buffer
	_, err = newc.Write(&b, list)
	return &b, err
}

// sh runs a script in the guest. A status of the script other than 0 is in the result, and is no error of sh.
func (l *bench) sh(ctx context.Context, script string) (agent.ExecResult, error) {
	return agent.Run.Call(ctx, l.machine.Agent(),
		agent.Exec{Args: []string{"/bin/sh", "-c", "export PATH=/bin; " + script}})
}

func (l *bench) do(ctx context.Context, script string) error {
	r, err := l.sh(ctx, script)
	if err == nil && r.Status != 0 {
		err = fmt.Errorf("in the guest: %s: status %d: %s", script, r.Status, agent.Plain(r.Stdout+r.Stderr))
	}
	return err
}

// network gives eth0 its addresses, brings it up, and allows flow rules: ncdevmem adds one, and with gve they are not
// allowed at first (docs/specs/devmem.md, 6).
func (l *bench) network(ctx context.Context) error {
	return l.do(ctx,
		fmt.Sprintf("set -e; ip addr add %v dev eth0; ip addr add %v dev eth0; ip link set eth0 up; ethtool -K eth0 "+
			"ntuple on",
			guestAddrs[0], guestAddrs[1]))
}

func (l *bench) listening(ctx context.Context, port uint16) error {
	script := fmt.Sprintf("until grep -q '^ *[0-9]*: [0-9A-F]*:%04X [0-9A-F]*:0000 0A' /proc/net/tcp6; do usleep "+
		"10000; done", port)
	return l.do(ctx, script)
}

// fromGuest calls each with the content of a file of the guest, part after part. The content comes over TCP:
// agent.ExecResult has only the end of a long output.
func (l *bench) fromGuest(ctx context.Context, path string, each func([]byte) error) error {
	l.ports++
	addr := netip.AddrPortFrom(peerAddrs[0].Addr(), l.ports)
	in, err := l.listen(addr)
	if err != nil {
		return err
	}
	defer in.Close()
	eg, ctx := errgroup.WithContext(ctx)
	eg.Go(func() error { return read(ctx, in, each) })
	eg.Go(func() error { return l.do(ctx, fmt.Sprintf("nc %v %d -e cat %s", addr.Addr(), addr.Port(), path)) })
	return eg.Wait()
}

func (l *bench) text(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var b bytes.Buffer
	err := l.fromGuest(ctx, path, func(p []byte) error {
		if b.Len()+len(p) > 64<<20 {
			return fmt.Errorf("%s of the guest is endless", path)
		}
		b.Write(p)
		return nil
	})
	return b.String(), err
}

// ran is what beside learns of a program in the guest.
type ran struct {
	res   agent.ExecResult
	text  string // content of stderrFile
	meter control.FlowCounts
	took  time.Duration // of the program and the function beside it
}

// beside runs a program in the guest and, at the same time, do in this process. do's context ends when ctx ends, when
// the program has failed, or, if last is set, when it has ended.
func (l *bench) beside(ctx context.Context, guest, peer netip.AddrPort, program string, last bool,
	do func(context.Context) error) (x ran, err error) {
	counters, err := l.meter(guest, peer)
	if err != nil {
		return x, err
	}
	start := time.Now()
	eg, gctx := errgroup.WithContext(ctx)
	ready, stopWaiting := context.WithCancelCause(gctx)
	defer stopWaiting(nil)
	eg.Go(func() (err error) {
		x.res, err = l.sh(gctx, program)
		if last || x.res.Status != 0 {
			stopWaiting(errors.New("the program has ended"))
		}
		return err
	})
	eg.Go(func() error {
		if err := do(ready); ready.Err() == nil || gctx.Err() != nil {
			return err
		}
		return nil // the program's status and output say more than do's error
	})
	err = eg.Wait()
	x.took = time.Since(start)
	var merr, terr error
	x.meter, merr = counters()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	x.text, terr = l.text(ctx, stderrFile)
	return x, errors.Join(err, merr, terr)
}

func (l *bench) kernelLog(ctx context.Context, j *judge) error {
	j.begin("the guest's kernel log")
	r, err := l.sh(ctx, "dmesg")
	if err != nil {
		return err
	}
	trouble := logTrouble(r.Stdout)
	j.check(r.Status == 0 && len(r.Stdout) > 0 && len(trouble) == 0, "%d lines that warn, of %d", len(trouble),
		bytes.Count([]byte(r.Stdout), []byte{'\n'}))
	if len(trouble) > 0 {
		j.words(r.Stdout, 60)
	}
	return nil
}
