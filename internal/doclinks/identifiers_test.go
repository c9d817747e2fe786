package doclinks

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	quoted      = regexp.MustCompile("`([^`\n]+)`")
	goName      = regexp.MustCompile(`^\*?([A-Za-z]\w*(?:\.[A-Za-z]\w*)*)(?:[({/].*)?$`)
	foreignName = regexp.MustCompile(`^(?:cu(?:da)?[A-Z]\w*|LnkCap|LnkSta|resourceN|Documentation|Buffer\.Merge|vnic\.dev|` +
		`\w+\.(?:c|cu|go|h|html|json|txt|xml|yaml)|out\.retransmitted|requester\.timeouts)$`)
	goWord = regexp.MustCompile(`^(?:[a-z]+[A-Z]|[A-Z]\w*[a-z])[A-Za-z0-9]*$`)
)

type index struct {
	packages map[string]map[string]bool
	types    map[string]map[string]bool // fields and methods by type name, in all packages
	names    map[string]bool
	embedded map[string]map[string]bool
	imports  map[string]bool // last elements of import paths outside vnic.dev
}

func readIndex(t *testing.T) *index {
	t.Helper()
	x := &index{packages: map[string]map[string]bool{}, types: map[string]map[string]bool{}, names: map[string]bool{},
		embedded: map[string]map[string]bool{}, imports: map[string]bool{}}
	for _, name := range tracked(t, "*.go") {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		x.add(f)
	}
	return x
}

func (x *index) add(f *ast.File) {
	pkg := strings.TrimSuffix(f.Name.Name, "_test")
	for _, i := range f.Imports {
		if path, err := strconv.Unquote(i.Path.Value); err == nil && !strings.HasPrefix(path, "vnic.dev/") {
			x.imports[filepath.Base(path)] = true
		}
	}
	x.put(x.packages, pkg, "")
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				x.put(x.packages, pkg, d.Name.Name)
			} else {
				x.put(x.types, receiver(d.Recv.List[0].Type), d.Name.Name)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					x.put(x.packages, pkg, s.Name.Name)
					x.put(x.types, s.Name.Name, "")
					x.members(s)
				case *ast.ValueSpec:
					for _, n := range s.Names {
						x.put(x.packages, pkg, n.Name)
					}
				}
			}
		}
	}
}

func (x *index) members(s *ast.TypeSpec) {
	ast.Inspect(s.Type, func(n ast.Node) bool {
		if _, function := n.(*ast.FuncType); function {
			return false
		}
		list, ok := n.(*ast.FieldList)
		if !ok {
			return true
		}
		for _, f := range list.List {
			for _, n := range f.Names {
				x.put(x.types, s.Name.Name, n.Name)
			}
			if len(f.Names) == 0 {
				x.put(x.types, s.Name.Name, receiver(f.Type))
				x.put(x.embedded, s.Name.Name, receiver(f.Type))
			}
		}
		return true
	})
}

func (x *index) put(in map[string]map[string]bool, owner, name string) {
	if in[owner] == nil {
		in[owner] = map[string]bool{}
	}
	in[owner][name], x.names[owner], x.names[name] = true, true, true
}

func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return ""
}

func (x *index) has(name string) bool {
	parts := strings.Split(name, ".")
	first := parts[0]
	switch {
	case strings.Contains(name, "_"):
		return true
	case len(parts) == 1:
		return !goWord.MatchString(name) || x.names[name]
	case len(first) == 1: // a variable of an example
		return !goWord.MatchString(parts[1]) || x.names[parts[1]]
	}
	pkg, typ := x.packages[first], x.types[first]
	if pkg == nil && typ == nil {
		return x.imports[first] || !goWord.MatchString(parts[1])
	}
	if pkg[parts[1]] && (len(parts) == 2 || x.types[parts[1]] == nil || x.member(parts[1], parts[2])) {
		return true
	}
	return typ != nil && x.member(first, parts[1])
}

// member reports whether typ, or a type that it embeds, has a field or method. above has the types that embed typ and
// were searched.
func (x *index) member(typ, name string, above ...string) bool {
	if x.types[typ][name] || slices.Contains(above, typ) {
		return x.types[typ][name]
	}
	for t := range x.embedded[typ] {
		if x.member(t, name, append(above, typ)...) {
			return true
		}
	}
	return false
}

// Names in back-quotes in README, ARCHITECTURE, CONTRIBUTING and docs that look like Go's (see index.has) are
// declared in the tree, or are other projects'.
func TestNamesThatPagesQuoteAreDeclared(t *testing.T) {
	x := readIndex(t)
	names := 0
	for _, page := range tracked(t, "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/*.md") {
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range quoted.FindAllStringSubmatch(string(text), -1) {
			m := goName.FindStringSubmatch(q[1])
			if m == nil || file.MatchString(q[0]) || foreignName.MatchString(m[1]) {
				continue
			}
			if names++; !x.has(m[1]) {
				t.Errorf("%s: no Go file declares %s", page, m[1])
			}
		}
	}
	t.Log(names)
}
