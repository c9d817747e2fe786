package guests

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/machinetest"
	"vnic.dev/vnic/internal/proc"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/test/internal/stranger"
)

// A gVNIC is a vfio-user device, a virtio NIC a vhost-user one.
const serveLab = `guests:
  a: {memory: 384M, nics: [{name: n, model: gve}], gpus: [{name: g, memory: 128M}]}
  b: {memory: 384M, nics: [{name: n, model: virtio}], gpus: [{name: g, memory: 128M}]}
`

type served struct {
	KernelArgs string `json:"kernel_args"`
	Ports      []struct{ Name, Addr4 string }
	Guests     []struct {
		Name string
		QEMU []string
	}
}

// serveCommand starts QEMUs with the arguments that `vnic serve --json` prints.
func serveCommand(t *testing.T, vnic string) {
	dir := t.TempDir()
	im := machinetest.Images(t, []string{lab.GVE, lab.Virtio}, guestimages.Options{Applets: []string{"devmem"}})
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
	defer cancel()
	testkit.OK(t, os.WriteFile(filepath.Join(dir, "lab.yaml"), []byte(serveLab), 0o644))
	cmd := exec.CommandContext(ctx, vnic, "serve", "--lab", "lab.yaml", "--socket-path", filepath.Join(dir, "%s.sock"),
		"--json")
	var stderr strings.Builder
	cmd.Dir, cmd.Stderr = dir, &stderr
	stdout, printed, err := os.Pipe()
	testkit.OK(t, err)
	defer stdout.Close()
	cmd.Stdout = printed
	server, err := proc.StartChild(cmd)
	testkit.OK(t, errors.Join(err, printed.Close()))
	defer stranger.Kill(server)
	var rep served
	if err := json.NewDecoder(stdout).Decode(&rep); err != nil || len(rep.Guests) != 2 || len(rep.Ports) != 2 {
		t.Fatalf("vnic serve: %+v: %v", rep, err)
	}
	ends := bootServed(ctx, t, dir, im, &rep)
	testkit.OK(t, stranger.Send(ctx, ends[0], ends[1], 8<<20))
	testkit.OK(t, stranger.Send(ctx, ends[1], ends[0], 8<<20))
	testkit.OK(t, syscall.Kill(server.PID(), syscall.SIGTERM))
	<-server.Done()
	if err := server.Err(); err != nil || strings.Contains(stderr.String(), "sandbox:") {
		t.Errorf("vnic serve after SIGTERM: %v: %s", err, &stderr)
	}
	if left := testkit.Must(filepath.Glob(filepath.Join(dir, "*.sock")))(t); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// bootServed boots guests on the NICs of a `vnic serve`.
func bootServed(ctx context.Context, t *testing.T, dir string, im *machine.Images, rep *served) []stranger.End {
	t.Helper()
	machinetest.Count(len(rep.Guests))
	ends, errs := make([]stranger.End, len(rep.Guests)), make([]error, len(rep.Guests))
	var booted sync.WaitGroup
	for i, model := range []string{lab.GVE, lab.Virtio} {
		g := rep.Guests[i]
		soft := machine.SoftwareFor(model)
		c := stranger.Config{Dir: dir, Name: g.Name, Initrd: filepath.Join(dir, "initrd-"+g.Name), Append: rep.KernelArgs,
			Args: g.QEMU}
		testkit.OK(t, stranger.WriteInitrd(im, agent.Config{Modules: slices.Clone(soft.Modules), HugePages: soft.HugePages,
			Node0: model == lab.GVE}, c.Initrd))
		booted.Go(func() { ends[i].Guest, errs[i] = stranger.Boot(ctx, im, c) })
		t.Cleanup(func() {
			if t.Failed() {
				console, _ := os.ReadFile(c.Console())
				output, _ := os.ReadFile(c.Console() + "-qemu")
				t.Logf("guest %s: %s%s", c.Name, agent.Plain(string(console[max(0, len(console)-4<<10):])),
					agent.Plain(string(output)))
			}
		})
	}
	booted.Wait()
	for i := range ends {
		if g := ends[i].Guest; g != nil {
			t.Cleanup(g.Kill)
		}
		testkit.NoError(t, errs[i])
		ends[i].Device = []string{"eth0", lab.Virtio}[i]
		ends[i].Addr, _, _ = strings.Cut(rep.Ports[i].Addr4, "/")
	}
	if t.Failed() {
		t.FailNow()
	}
	return ends
}
