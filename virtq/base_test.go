package virtq

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"vnic.dev/vnic/internal/testkit"
)

func TestBaseOfASplitRing(t *testing.T) {
	g := newGuest(t)
	r := newRaw(g, Config{Size: 8, Desc: ringIOVA, Avail: ringIOVA + 0x1000, Used: ringIOVA + 0x2000})
	for state, resumed := range map[uint32]bool{0: false, 1: true, 0xffff: true} {
		r.conf.Base = BaseOf(state)
		q := testkit.Must(NewDevice(g.space, r.conf))(t)
		if q.Resumed() != resumed || q.Base().State() != state {
			t.Errorf("base %#x: resumed: %t, %#x", state, q.Resumed(), q.Base().State())
		}
		q.Close()
	}
	r.conf.Base = BaseOf(0x10000)
	testkit.ErrorIs(t, testkit.Err(NewDevice(g.space, r.conf)), ErrBadRing, "base 0x10000")
}

// In files of these folders that import vhostuser or virtq, and in vhostuser, tests excepted, an expression whose name
// is Base or base, or its State, must not be an operand of an operator, not even of == and !=.
func TestNobodyComputesWithABase(t *testing.T) {
	files := 0
	for _, dir := range []string{"../internal/nic", "../vhostuser", "../internal/driver", "../internal/lab", "../cmd"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			f := token.NewFileSet()
			file, err := parser.ParseFile(f, path, nil, parser.SkipObjectResolution)
			if err != nil || dir != "../vhostuser" && !slices.ContainsFunc(file.Imports, handlesRings) {
				return err
			}
			files++
			for _, pos := range computes(file) {
				t.Errorf("%v: computes with a ring's base", f.Position(pos))
			}
			return nil
		})
		testkit.OK(t, err)
	}
	if files < 20 {
		t.Errorf("looked at %d files", files)
	}
	for i, bad := range []string{"q.vq.Base() - 1", "1 + q.Base()", "v.Base != 0", "uint16(v.Base) + n",
		"q.Base().State() & 7"} {
		src := fmt.Sprintf("package p\nfunc f() { _ = %s }", bad)
		file, err := parser.ParseFile(token.NewFileSet(), "", src, parser.SkipObjectResolution)
		if err != nil || len(computes(file)) == 0 {
			t.Errorf("%d: %s is not found: %v", i, bad, err)
		}
	}
}

func handlesRings(i *ast.ImportSpec) bool {
	return strings.HasSuffix(i.Path.Value, `/vhostuser"`) || strings.HasSuffix(i.Path.Value, `/virtq"`)
}

func computes(file *ast.File) (positions []token.Pos) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if isBase(n.X) || isBase(n.Y) {
				positions = append(positions, n.OpPos)
			}
		case *ast.IncDecStmt:
			if isBase(n.X) {
				positions = append(positions, n.TokPos)
			}
		case *ast.AssignStmt:
			if n.Tok != token.ASSIGN && n.Tok != token.DEFINE && (isBase(n.Lhs[0]) || isBase(n.Rhs[0])) {
				positions = append(positions, n.TokPos)
			}
		}
		return true
	})
	return positions
}

func isBase(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return isBase(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name == "Base" || e.Sel.Name == "base" || e.Sel.Name == "State" && isBase(e.X)
	case *ast.CallExpr:
		if isBase(e.Fun) {
			return true
		}
		if f, ok := e.Fun.(*ast.Ident); ok && len(e.Args) == 1 && strings.HasPrefix(f.Name, "uint") {
			return isBase(e.Args[0])
		}
	}
	return false
}
