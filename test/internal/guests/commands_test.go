package guests

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/devmemtest"
	"vnic.dev/vnic/internal/machine/machinetest"
	"vnic.dev/vnic/internal/proc"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/test/internal/conditions"
)

// commandLimit is how long a command of vnic may take, downloads included.
const commandLimit = 8 * time.Minute

type command struct {
	name   string
	args   string // of the command load: "URL" and "DIGEST" stand for a served file's URL and SHA-256
	guests int    // that the command boots
	holds  []string
}

func devmemRun(i int) []string {
	return runs(i, `mode == "devmem"`, "sha256_match == true", "tx.device >= bytes", "rx.device >= bytes",
		"tx.host == 0", "rx.host == 0", "linear_bytes == 0", "bounced_bytes == 0")
}

func copyRun(i int) []string {
	return runs(i, `mode == "copy"`, "sha256_match == true", "tx.host >= bytes", "rx.host >= bytes",
		"tx.device == 0", "rx.device == 0")
}

func runs(i int, conditions ...string) (list []string) {
	for _, c := range conditions {
		f := strings.SplitN(c, " ", 3)
		if f[2] == "bytes" || strings.HasSuffix(f[2], "_bytes") {
			f[2] = fmt.Sprintf("runs.%d.%s", i, f[2])
		}
		list = append(list, fmt.Sprintf("runs.%d.%s", i, strings.Join(f, " ")))
	}
	return list
}

func join(lists ...[]string) (all []string) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

var commands = []command{
	{name: "run virtio", args: "run --size 8M --audit", guests: 2, holds: join(devmemRun(0), copyRun(1),
		[]string{`guest == "qemu"`, `nic == "virtio"`, "runs.-len- == 2", "runs.0.audit.hits_sender == 0",
			"runs.0.audit.hits_receiver == 0", "runs.0.audit.bytes_scanned > 0"})},
	{name: "run gve", args: "run --nic gve --size 8M --audit --family 6 --bind-queues 2", guests: 2, holds: join(
		devmemRun(0), copyRun(1), []string{`guest == "qemu"`, `nic == "gve"`, "family == 6", "bind_queues == 2",
			"runs.-len- == 2", "runs.0.audit.hits_sender == 0", "runs.0.audit.hits_receiver == 0",
			"runs.0.audit.bytes_scanned > 0"})},
	{name: "run with the driver vnicgpu", args: "run --nic gve --gpu-driver vnicgpu --gpu-memory 32M --size 8M " +
		"--mode devmem", guests: 2, holds: join(devmemRun(0), []string{`guest == "qemu"`, "runs.-len- == 1",
		"runs.0.bytes == 8388608"})},
	{name: "allreduce", args: "allreduce --nic gve,virtio --count 5,100001 -n 1 -w 0 --timeout 60s", guests: 2,
		holds: []string{`guest == "qemu"`, "modes.0.wrong == 0", "modes.0.rows.-len- == 2", "modes.0.ranks.-len- == 2",
			`modes.0.ranks.0.nic == "gve"`, `modes.0.ranks.1.nic == "virtio"`, "modes.0.ranks.0.expected.out > 0",
			"modes.0.ranks.0.out.device >= modes.0.ranks.0.expected.out",
			"modes.0.ranks.1.out.device >= modes.0.ranks.1.expected.out",
			"modes.0.ranks.0.in.device >= modes.0.ranks.0.expected.in",
			"modes.0.ranks.1.in.device >= modes.0.ranks.1.expected.in", "modes.0.ranks.0.linear_bytes == 0",
			"modes.0.ranks.0.out.host == 0", "modes.0.ranks.1.out.host == 0", "modes.0.ranks.0.in.host == 0",
			"modes.0.ranks.1.in.host == 0", "modes.0.ranks.1.linear_bytes == 0"}},
	{name: "load", args: "load URL --sha256 DIGEST --nic gve --timeout 60s", guests: 1, holds: join(
		runs(0, `mode == "devmem"`, "verified == true", "rx.host == 0", "rx.device >= bytes", "host_bytes == 0",
			"resumed == 0"), []string{`guest == "qemu"`, "runs.0.bytes == size", "size > 0"})},
	{name: "block", args: "block --nic gve --size 4M --bs 20K --random --timeout 60s", guests: 2, holds: join(
		runs(0, `what == "read"`, "verified == true", "failed == 0", "rx.host == 0", "rx.device >= bytes",
			"host_bytes == 0"),
		runs(1, `what == "write"`, "failed == 0", "tx.device >= bytes"),
		runs(2, `what == "read back"`, "verified == true", "failed == 0", "rx.host == 0", "rx.device >= bytes"),
		[]string{`guest == "qemu"`, "runs.-len- == 3"})},
	{name: "rdma", args: "rdma put --nic gve,virtio --size 4M --mr gpu,ram", guests: 2, holds: join(
		runs(0, `mr == "gpu"`, "verified == true", "requester.device >= bytes", "responder.device >= bytes",
			"requester.host == 0", "responder.host == 0", "requester.error_naks == 0"),
		runs(1, `mr == "ram"`, "verified == true", "requester.host >= bytes", "responder.host >= bytes",
			"requester.device == 0", "responder.device == 0"),
		[]string{`guest == "qemu"`, "runs.-len- == 2", "runs.0.bytes == size", "runs.0.sha256 == runs.0.source_sha256"})},
}

// Invariant: vnic run: With GPUs that the driver vnicgpu has, payload goes from GPU to GPU by the kernel's own
// TCP, and not through host memory.
//
// Invariant: vnic run: In two guests of QEMU, on either NIC, the program proves that payload went from GPU to
// GPU and not through host memory.
func TestCommands(t *testing.T) {
	if testing.Short() {
		t.Skip("boots QEMU")
	}
	testkit.Source(t) // vnic may need the checkout to build other commands
	vnic := machinetest.Program(t, "vnic.dev/vnic/cmd/vnic")
	for _, c := range commands {
		t.Run(c.name, func(t *testing.T) { c.run(t, vnic) })
	}
	t.Run("boot", func(t *testing.T) { bootCommand(t, vnic) })
	t.Run("serve", func(t *testing.T) { serveCommand(t, vnic) })
}

func (c *command) run(t *testing.T, vnic string) {
	args := strings.Fields(c.args)
	if c.name == "load" {
		url, digest := serveOneFile(t)
		args = strings.Fields(strings.NewReplacer("URL", url, "DIGEST", digest).Replace(c.args))
	}
	out := execute(t, c.guests, 0, vnic, append(args, "--seed", "7", "--json")...)
	doc, err := conditions.Read(strings.NewReader(out))
	testkit.OK(t, err)
	for _, condition := range c.holds {
		if ok, text := doc.Holds(condition); !ok {
			t.Errorf("does not hold: %s", text)
		}
	}
	if t.Failed() {
		t.Log(out)
	}
}

// execute runs a program that boots guests, and returns its stdout. The test fails if it ends with another status.
func execute(t *testing.T, guests, status int, program string, args ...string) string {
	t.Helper()
	machinetest.Count(guests)
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = t.TempDir(), &stdout, &stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // the command then ends its guests
	cmd.WaitDelay = 30 * time.Second
	child := testkit.Must(proc.StartChild(cmd))(t) // ends with this process, even if this process is killed
	<-child.Done()
	err := child.Err()
	t.Logf("%.1f s, CPU %.1f s: %s", time.Since(begin).Seconds(),
		(cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(), strings.Join(args, " "))
	if err != nil && cmd.ProcessState.ExitCode() != status || err == nil && status != 0 {
		t.Fatalf("status %d of %v, want %d: %v\n%s\n%s", cmd.ProcessState.ExitCode(), args, status, err,
			agent.Plain(stdout.String()), agent.Plain(stderr.String()))
	}
	return stdout.String()
}

func serveOneFile(t *testing.T) (url, digest string) {
	t.Helper()
	file := make([]byte, 4<<20+12345)
	gpumem.FillAt(file, 9, 0)
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: handler(file)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-done
	})
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return fmt.Sprintf("http://localhost:%s/file", port), fmt.Sprintf("%x", sha256.Sum256(file))
}

// bootCommand boots two guests, which ping each other by name, run memory-conformance, and print bytes.
func bootCommand(t *testing.T, vnic string) {
	const script = `until ping -c 1 guest$((1 - VNIC_INDEX)) > /dev/null; do sleep 1; done
echo answered
/memory-conformance
printf 'a\001\377\n'
exit $((VNIC_INDEX * 7))`
	memory := machinetest.Program(t, "vnic.dev/vnic/internal/memory-conformance")
	testkit.OK(t, os.Chmod(filepath.Dir(memory), 0o755))
	out := execute(t, 2, 7, vnic, "boot", "--timeout", "6m", "--nic", "virtio", "--guests", "2", "--gpu-memory", "64M",
		"--copy", memory+":/memory-conformance", "--", "sh", "-c", script)
	n := len(devmemtest.MemoryCases())
	for i := range 2 {
		for _, want := range []string{"answered\n", fmt.Sprintf("%d of %d cases passed, contents by BAR\n", n, n),
			"a\001\377\n"} {
			if !lineEnds(out, fmt.Sprintf("[%d] ", i), want) {
				t.Errorf("guest %d: no line that ends so: %q", i, want)
			}
		}
	}
	if t.Failed() {
		t.Logf("%q", out)
	}
}

func lineEnds(text, begin, end string) bool {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, begin) && strings.HasSuffix(line, end) {
			return true
		}
	}
	return false
}
