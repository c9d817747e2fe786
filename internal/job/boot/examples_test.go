package boot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/doc"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"vnic.dev/vnic/internal/devmemtest"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
)

type exampleProgram struct {
	source []byte
	output string
}

func exampleOf(file string, src []byte) (exampleProgram, error) {
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, file, src, parser.ParseComments)
	if err != nil {
		return exampleProgram{}, err
	}
	list := doc.Examples([]*ast.File{tree}...)
	switch {
	case len(list) != 1:
		return exampleProgram{}, fmt.Errorf("%s: %d examples: one is shown with all of its file", file, len(list))
	case list[0].Play == nil:
		return exampleProgram{}, fmt.Errorf("%s: the example is no program by itself", file)
	case strings.TrimSpace(list[0].Output) == "" || list[0].Unordered:
		return exampleProgram{}, fmt.Errorf("%s: the example does not say what it prints", file)
	}
	var b bytes.Buffer
	if err := format.Node(&b, fset, list[0].Play); err != nil {
		return exampleProgram{}, fmt.Errorf("%s: %w", file, err)
	}
	return exampleProgram{b.Bytes(), strings.TrimSpace(list[0].Output)}, nil
}

func (e exampleProgram) build(ctx context.Context, to string) error {
	if err := os.WriteFile(to+".go", e.source, 0o644); err != nil {
		return err
	}
	return goBuild(ctx, to, to+".go")
}

func goBuild(ctx context.Context, to, what string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", to, what)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// sections splits guests' output by programs: a line "[GUEST] == NAME STATUS" ends the output of a program in a guest,
// whose key in the result is "NAME STATUS".
func sections(out string) map[string]string {
	found, lines := map[string]string{}, map[string][]string{}
	for line := range strings.Lines(out) {
		guest, line, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if name, ok := strings.CutPrefix(line, "== "); ok {
			found[name], lines[guest] = strings.TrimSpace(strings.Join(lines[guest], "\n")), nil
		} else {
			lines[guest] = append(lines[guest], line)
		}
	}
	return found
}

// For each NIC model two guests run programs of this machine: examples of the documentation, and the
// conformance suite of devmem.Memory.
//
// Invariant: guest: Device.Engines implement devmem.Memory in guests as package devmem specifies
// it, on either NIC.
// Invariant: vnic boot: A program's output and exit status reach the host unchanged, with either
// NIC.
func TestProgramRunsInAGuest(t *testing.T) {
	testkit.Boots(t)
	const root = "../../.."
	dir := t.TempDir()
	want := map[string]string{}
	for name, file := range map[string]string{
		"receiver": "guest/example_receiver_test.go",
		"sender":   "guest/example_sender_test.go",
		"kernel":   "devmem/kernel/example_test.go",
	} {
		src := testkit.Must(os.ReadFile(filepath.Join(root, file)))(t)
		e := testkit.Must(exampleOf(file, src))(t)
		if err := e.build(t.Context(), filepath.Join(dir, name)); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		want[name+" 0"] = e.output
	}
	const memory = "vnic.dev/vnic/internal/memory-conformance"
	testkit.OK(t, goBuild(t.Context(), filepath.Join(dir, "memory"), memory))
	input := bytes.Repeat([]byte("for GPU memory\n"), 1500000/15) // for the example of devmem/kernel
	testkit.OK(t, os.WriteFile(filepath.Join(dir, "input"), input, 0o644))
	t.Chdir(dir)

	// Guest 0 runs receivers, guest 1 senders; pour is a sender without devmem. At its end the script counts the
	// epoll descriptors that watch the results channel: with two, messages could stay unread (internal/boot,
	// openResults).
	const script = `
polls() {
	n=0
	for f in /proc/[0-9]*/fdinfo/*; do
		while read -r key fd _; do
			[[ $key == tfd: && ${f%%%%/fdinfo*}/fd/$fd -ef $(echo /dev/vport*) ]] && n=$((n + 1))
		done 2>/dev/null < $f
	done
	echo "$n polls" >&2
}
run() { ./$1; echo "== $1 $?"; }
pour() { cat input > /dev/tcp/guest0/5202; }
case $VNIC_INDEX-%s in
0-gve) run receiver; run kernel; run memory;;
1-gve) run sender; until pour 2>/dev/null; do sleep 0.1; done;;
0-*) run receiver; run memory;;
1-*) run sender;;
esac
printf 'a\001\377\r\n'
cat /proc/sys/kernel/hostname >&2
polls
exit $((VNIC_INDEX * 7))`
	for nic, programs := range map[string]string{
		lab.Virtio: "receiver sender memory", lab.GVE: "receiver sender kernel memory",
	} {
		t.Run(nic, func(t *testing.T) {
			ignore := goleak.IgnoreCurrent()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			var out, errs bytes.Buffer
			o := good()
			o.NIC, o.Guests, o.Stdout, o.Stderr, o.Note, o.LogDir = nic, 2, &out, &errs, t.Logf, t.TempDir()
			o.Copies = append(strings.Fields(programs), "input")
			o.GPUMemory = 128 << 20 // with gve the kernel uses some of it
			o.Command = []string{"bash", "-c", fmt.Sprintf(script, nic)}
			status, err := Do(ctx, o)
			if err != nil || status != 7 {
				t.Errorf("status %d, %v", status, err)
			}
			n, by := len(devmemtest.MemoryCases()), map[string]string{lab.Virtio: "BAR", lab.GVE: "Engines"}
			want["memory 0"] = fmt.Sprintf("%d of %d cases passed, contents by %s", n, n, by[nic])
			got := sections(out.String())
			for _, p := range strings.Fields(programs) {
				if g, ok := got[p+" 0"]; !ok || g != want[p+" 0"] {
					t.Errorf("%s: got %q, want %q", p, g, want[p+" 0"])
				}
			}
			for i := range o.Guests {
				if !strings.Contains(out.String(), fmt.Sprintf("[%d] a\001\377\r\n", i)) ||
					!strings.Contains(errs.String(), fmt.Sprintf("[%d] guest%d\n", i, i)) {
					t.Errorf("guest %d: not its bytes, or not its name", i)
				}
				if !strings.Contains(errs.String(), fmt.Sprintf("[%d] 1 polls\n", i)) {
					t.Errorf("guest %d: not one that polls the results channel", i)
				}
			}
			if files, err := filepath.Glob(filepath.Join(o.LogDir, "console-guest?.log")); len(files) != 2 {
				t.Errorf("%q, %v", files, err)
			}
			if t.Failed() {
				t.Logf("stdout:\n%qstderr:\n%q", &out, &errs)
			}
			goleak.VerifyNone(t, ignore)
		})
	}
}

func TestExamplesThatAreNoProgramsAreRefused(t *testing.T) {
	const head = "package x_test\n\nimport \"fmt\"\n\n"
	const helper = "func f() int { return 1 }\n\n"
	for what, c := range map[string]struct{ src, err string }{
		"no example":       {head + helper, "0 examples"},
		"two":              {head + "func Example_a() {\n}\nfunc Example_b() {\n}\n", "2 examples"},
		"no output":        {head + helper + "func Example() {\n\tfmt.Println(f())\n}\n", "does not say"},
		"unordered output": {head + helper + "func Example() {\n\tf()\n\t// Unordered output: 1\n}\n", "does not say"},
		"no Go":            {"package", "expected"},
	} {
		if _, err := exampleOf("x_test.go", []byte(c.src)); err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v does not say %q", what, err, c.err)
		}
	}
	e, err := exampleOf("x_test.go", []byte(head+helper+"func Example() {\n\tfmt.Println(f())\n\t// Output: 1\n}\n"))
	if err != nil || e.output != "1" || !strings.Contains(string(e.source), "package main") {
		t.Errorf("%+v, %v", e, err)
	}
	dir := t.TempDir()
	testkit.OK(t, e.build(t.Context(), filepath.Join(dir, "good")))
	e.source = append(e.source, "func g() { missing() }\n"...)
	exit := (*exec.ExitError)(nil)
	err = e.build(t.Context(), filepath.Join(dir, "bad"))
	if !errors.As(err, &exit) || !strings.Contains(err.Error(), "missing") {
		t.Errorf("%v", err)
	}
}

func TestOutputOfGuestsIsTakenApart(t *testing.T) {
	got := sections("[0] a\n[1] b\n[0] c\n[1] == y 1\n[0] == x 0\n[0] == z 0\n")
	if len(got) != 3 || got["x 0"] != "a\nc" || got["y 1"] != "b" || got["z 0"] != "" {
		t.Errorf("%q", got)
	}
}
