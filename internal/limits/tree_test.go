package limits_test

import (
	_ "embed" // embeds the exceptions
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// many is the number of exceptions in exceptions.txt, which must only decrease.
const many = 135

//go:embed testdata/exceptions.txt
var exceptions string

// waits are the folders and files in which TestNoTimeIsElsewhere looks for times, but not in tests or testdata.
var waits = []string{"block", "cmd/vnic", "collective", "devmem", "gpumem", "guest", "guest-images", "internal/agent",
	"internal/boot", "internal/control", "internal/devmemtool", "internal/dhcp", "internal/driver",
	"internal/elfdeps", "internal/engine", "internal/gpudriver", "internal/gpusocket", "internal/guestnet",
	"internal/guestnvme", "internal/guestroot", "internal/guesttools", "internal/guesttree", "internal/kernelnic",
	"internal/lab", "internal/machine", "internal/machine/qemu", "internal/mailbox", "internal/newc",
	"internal/nic", "internal/proc", "internal/rdma", "internal/guestexec", "internal/transfer", "internal/wire",
	"internal/wire/uplink", "loader", "stack", "vfiouser", "vhostuser", "internal/access", "internal/atexit",
	"internal/limit", "internal/machine/assets/find.go",
	"internal/gpufd", "internal/broker", "internal/terminal", "internal/spare", "internal/hints", "internal/report/plot",
	"internal/report/labshow", "internal/report/pcap", "internal/session", "internal/job", "internal/webfile",
	"internal/httpserver",
	"internal/report/stat", "internal/report/page", "internal/report/junit", "internal/report/show", "internal/live",
	"internal/manual"}

// forTests are folders that TestNoTimeIsElsewhere skips, except for a file in them that waits names.
var forTests = []string{"internal/machine/assets", "internal/lab/shape", "internal/devmemtest", "internal/clienttest",
	"internal/kerneltest", "internal/nic/nictest",
	"internal/stacktest", "internal/lab/labtest", "internal/machine/machinetest", "internal/gpudriver/gpudriver-test",
	"internal/memory-conformance", "internal/vfiotest", "internal/wire/wiretest"}

// TestNoTimeIsElsewhere fails for a constant time in the code of waits that testdata/exceptions.txt does not name, and
// for an exception whose time is no longer in the code.
//
// Invariant: limits: A time after which something is given up is in one list, and follows how slow
// the machine is, or it is an exception with a reason.
func TestNoTimeIsElsewhere(t *testing.T) {
	why, reason := map[string]string{}, ""
	for line := range strings.Lines(exceptions) {
		line = strings.TrimSpace(line)
		if text, isReason := strings.CutPrefix(line, "#"); isReason || line == "" {
			reason = strings.TrimSpace(text)
			continue
		}
		if reason == "" || why[line] != "" {
			t.Fatalf("exceptions.txt: %s: below a line that says why, each once", line)
		}
		why[line] = reason
	}
	if len(why) != many {
		t.Errorf("%d exceptions: there were %d, and there are to be no more; of fewer many is to be told", len(why), many)
	}
	root := filepath.Join("..", "..")
	seen := map[string]bool{}
	for _, dir := range waits {
		testkit.OK(t, filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name := testkit.Must(filepath.Rel(root, path))(t)
			switch {
			case d.IsDir() && (d.Name() == "testdata" || slices.Contains(forTests, name)):
				return filepath.SkipDir
			case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
				return nil
			}
			tree, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			testkit.OK(t, err)
			for _, x := range times(tree) {
				key := name + " " + x
				if table, _, _ := strings.Cut(key, ": "); why[table] != "" {
					key = table
				}
				seen[key] = true
				if why[key] == "" {
					t.Errorf("%s: a time of its own: it belongs in internal/limits/list.go", key)
				}
			}
			return nil
		}))
	}
	if len(seen) < 20 {
		t.Fatalf("%d times found: is that the whole tree?", len(seen))
	}
	for key := range why {
		if !seen[key] {
			t.Errorf("exceptions.txt: %s: it is not there any more: take the line out", key)
		}
	}
}

// times returns a file's constant expressions with a unit of package time, as "DECLARATION: TIME", but not those for
// which converts is true.
func times(tree *ast.File) (list []string) {
	for _, d := range tree.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			collect(d.Name.Name, d, &list)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if v, ok := s.(*ast.ValueSpec); ok {
					for i, x := range v.Values {
						collect(v.Names[min(i, len(v.Names)-1)].Name, x, &list)
					}
				}
			}
		}
	}
	return list
}

func collect(name string, n ast.Node, list *[]string) {
	ast.PreorderStack(n, nil, func(n ast.Node, above []ast.Node) bool {
		x, ok := n.(ast.Expr)
		if !ok || !constant(x) {
			return true
		}
		if text := types.ExprString(x); hasUnit(x) && !converts(x, above) {
			*list = append(*list, name+": "+text)
		}
		return false
	})
}

func unit(x ast.Expr) bool {
	s, ok := x.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	pkg, ok := s.X.(*ast.Ident)
	return ok && pkg.Name == "time" && slices.Contains([]string{"Nanosecond", "Microsecond", "Millisecond", "Second",
		"Minute", "Hour"}, s.Sel.Name)
}

func constant(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.BasicLit:
		return true
	case *ast.ParenExpr:
		return constant(x.X)
	case *ast.BinaryExpr:
		return constant(x.X) && constant(x.Y)
	}
	return unit(x)
}

func hasUnit(x ast.Expr) (has bool) {
	ast.Inspect(x, func(n ast.Node) bool {
		if x, ok := n.(ast.Expr); ok && unit(x) {
			has = true
		}
		return !has
	})
	return has
}

// converts reports whether x is a unit that the expression around it multiplies or divides by, or converts to a float,
// or whether x is an argument of Round or Truncate. above are the nodes around x, the innermost last.
func converts(x ast.Expr, above []ast.Node) bool {
	if len(above) == 0 {
		return false
	}
	switch up := above[len(above)-1].(type) {
	case *ast.BinaryExpr:
		return unit(x) && (up.Op == token.MUL || up.Op == token.QUO)
	case *ast.CallExpr:
		switch f := up.Fun.(type) {
		case *ast.SelectorExpr:
			return f.Sel.Name == "Round" || f.Sel.Name == "Truncate"
		case *ast.Ident:
			return unit(x) && strings.HasPrefix(f.Name, "float")
		}
	}
	return false
}

func TestTimesAreFound(t *testing.T) {
	tree := testkit.Must(parser.ParseFile(token.NewFileSet(), "", `package x
const a, b = 5*time.Second, 3
var c = time.Duration(n) * time.Second
var d = [2]time.Duration{time.Hour, 0}
func e() {
	f(time.Minute)
	g(x.Round(10*time.Millisecond), int(y/time.Millisecond), float64(time.Second), 3*time.Second/2)
	h(max(z, time.Millisecond))
}`, 0))(t)
	want := []string{"a: 5 * time.Second", "d: time.Hour", "e: time.Minute", "e: 3 * time.Second / 2",
		"e: time.Millisecond"}
	if got := times(tree); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
