package invariants

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// heldBy is how a test runs: in make test, only with VNIC_LONG, or as a script. easiest prefers them in this order.
type heldBy int

const (
	byMakeTest heldBy = iota
	byLong            // skipped without VNIC_LONG
	byScript
)

// guests is a package whose guests `make test` boots: its tests count as byMakeTest.
const guests = "test/internal/guests"

func (h heldBy) String() string { return [...]string{"", "long", "script"}[h] }

// easiest returns the mark, as " (long)", of the least heldBy among the tests at the start of list with the same area
// and sentence; "" for byMakeTest.
func easiest(list []invariant) string {
	h := byScript
	for _, i := range list {
		if i.area != list[0].area || i.sentence != list[0].sentence {
			break
		}
		h = min(h, i.by)
	}
	if h == byMakeTest {
		return ""
	}
	return " (" + h.String() + ")"
}

type function struct{ dir, name string }

// leftOut returns byLong for the functions of test code that skip a test without VNIC_LONG (look), or call a function
// that does, in their package or in a package with the name before the call's dot. The package guests is left out.
func leftOut(root string) (map[function]heldBy, error) {
	skips, calls := map[function]heldBy{}, map[function][]string{}
	packages := map[string][]string{}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, "test.go") && !strings.Contains(file, "/test/") ||
			filepath.Ext(file) != ".go" || strings.Contains(file, "/testdata/") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(rel)
		packages[path.Base(dir)] = append(packages[path.Base(dir)], dir)
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Body != nil && dir != guests {
				id := function{dir, fn.Name.Name}
				skips[id], calls[id] = look(fn.Body)
			}
		}
		return nil
	})
	for again := true; again; {
		again = false
		for id, names := range calls {
			for _, name := range names {
				dirs := []string{id.dir}
				if before, after, ok := strings.Cut(name, "."); ok {
					dirs, name = packages[before], after
				}
				for _, dir := range dirs {
					if h := skips[function{dir, name}]; h > skips[id] {
						skips[id], again = h, true
					}
				}
			}
		}
	}
	return skips, err
}

// look returns byLong if a function body, outside of function literals and loops, skips the test without VNIC_LONG: by
// t.Skip below a condition with testkit.Long, or by testkit.Boots. calls are the functions that it calls.
func look(body *ast.BlockStmt) (h heldBy, calls []string) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit, *ast.RangeStmt, *ast.ForStmt:
			return false
		case *ast.IfStmt:
			if asked := called(n.Cond); slices.Contains(called(n.Body), "t.Skip") {
				if slices.Contains(asked, "testkit.Long") {
					h = byLong
				}
			}
		}
		return true
	})
	calls = called(body)
	if slices.Contains(calls, "testkit.Boots") {
		h = byLong
	}
	return h, calls
}

// called lists the functions called below a node, without calls in function literals and loops.
func called(n ast.Node) (names []string) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit, *ast.RangeStmt, *ast.ForStmt:
			return false
		case *ast.CallExpr:
			switch f := n.Fun.(type) {
			case *ast.Ident:
				names = append(names, f.Name)
			case *ast.SelectorExpr:
				if x, ok := f.X.(*ast.Ident); ok {
					names = append(names, x.Name+"."+f.Sel.Name)
				}
			}
		}
		return true
	})
	return names
}

func TestWhenATestRuns(t *testing.T) {
	left := testkit.Must(leftOut(root))(t)
	for f, want := range map[function]heldBy{
		{"virtq", "TestBadChainStopsItsQueue"}:                          byMakeTest,
		{"test/internal/badinput", "TestEachBoundIsNeeded"}:             byLong,
		{"internal/machine/machinetest", "Images"}:                      byLong,
		{"test/internal/gvelab", "TestDriverSurvivesChurnUnderTraffic"}: byLong,
	} {
		if left[f] != want {
			t.Errorf("%v: %v, and not %v", f, left[f], want)
		}
	}
}
