package layers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"vnic.dev/vnic/internal/testkit"
)

// Each fuzz target has inputs: a corpus in testdata/fuzz, or a call of a method Add.
func TestFuzzTargetsHaveACorpus(t *testing.T) {
	found := 0
	for _, p := range packages(t) {
		files, err := filepath.Glob(filepath.Join(p.Dir, "*_test.go"))
		testkit.OK(t, err)
		for _, file := range files {
			tree := testkit.Must(parser.ParseFile(token.NewFileSet(), file, nil, 0))(t)
			for _, d := range tree.Decls {
				f, ok := d.(*ast.FuncDecl)
				if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Fuzz") {
					continue
				}
				found++
				corpus, _ := os.ReadDir(filepath.Join(p.Dir, "testdata", "fuzz", f.Name.Name))
				if len(corpus) == 0 && !adds(f) {
					t.Errorf("%s %s has no input", p.ImportPath, f.Name.Name)
				}
			}
		}
	}
	if found < 20 {
		t.Errorf("%d fuzz targets were found", found)
	}
}

func adds(f *ast.FuncDecl) (found bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		found = found || ok && s.Sel.Name == "Add"
		return !found
	})
	return found
}
