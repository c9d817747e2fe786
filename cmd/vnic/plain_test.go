package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/report/show"
	"vnic.dev/vnic/internal/testkit"
)

// printers lists the functions and methods that may get a command's stdout or stderr, each with the reason.
var printers = map[string]string{
	"show.Text":               "drops what a terminal obeys",
	"show.JSON":               "escapes it",
	"show.Encoded":            "escapes it",
	"show.New":                "its notes are plain, its stages are ours, its log is quoted by slog",
	"c.SetOut":                "help, which is ours",
	"realMain":                "the commands, which are looked at here",
	"live.TellFlows":          "by show.Text",
	"printReport":             "by show.Text, then coloured",
	"show.Doctor":             "facts are plain, then coloured",
	"show.Report":             "by show.JSON or show.Text",
	"printVersion":            "this program's",
	"serve.PrintCapabilities": "constant",
	"image.WriteList":         "constant",
	"image.Build":             "the user's paths, and names of files that are ours",
	"show.IsTerminal":         "prints nothing",
	"show.NewRepaint":         "paints by show.Text",
	"live.Watch":              "a number",
	"fmt.Fprint":              "see constants",
	"fmt.Fprintf":             "see constants",
	"fmt.Fprintln":            "see constants",
	"io.Copy":                 "JUnit's XML, escaped by encoding/xml",
	"io.WriteString":          "help, which is ours",
	"out.Write":               "the schema, which is ours",
}

// constants lists the functions that may print by fmt, and what they print.
var constants = map[string]string{
	"benchCommand":       "schemas",
	"runFlags.run":       "the schema, the list of faults",
	"selftestFlags.run":  "the list of faults",
	"serveFlags.run":     "a number; and what show.Plainly has made",
	"main":               "constant",
	"cacheRemoveCommand": "names that a pattern of ours lets in",
	"beginMachine":       "our error",
}

// holders lists the functions that may also use a stream otherwise than as an argument or receiver of a call, and why.
var holders = map[string]string{
	"bootFlags.run":      "guests' programs: their output is what the user asked for, byte by byte",
	"selftestFlags.run":  "the program of --shell, as of boot",
	"imageExportCommand": "the program itself, not to a terminal",
	"serveFlags.run":     "lines, which log and note write: slog quotes, show.Plainly filters",
	"Keep":               "a vnic of its own",
	"results":            "gives it to its caller, where it is followed",
	"readerGone":         "its name",
}

// Invariant: vnic: Output that may contain a guest's or server's text goes through one filter: a
// print around it is found.
func TestEachPrintIsPlain(t *testing.T) {
	fset := token.NewFileSet()
	files := testkit.Must(filepath.Glob("*.go"))(t)
	for _, dir := range []string{"live", "report/show", "spare"} {
		list := testkit.Must(filepath.Glob(filepath.Join("../../internal", dir, "*.go")))(t)
		if len(list) == 0 {
			t.Errorf("internal/%s has no files", dir)
		}
		files = append(files, list...)
	}
	seen := map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f := testkit.Must(parser.ParseFile(fset, name, nil, parser.SkipObjectResolution))(t)
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			for _, problem := range goesAround(fn, seen) {
				t.Errorf("%s: %s", name, problem)
			}
		}
	}
	for name := range printers {
		if !seen[name] {
			t.Errorf("nothing is given to %s any more: take it off printers", name)
		}
	}
}

// goesAround returns descriptions of a function's uses of a command's streams that printers, constants and holders do
// not permit. It adds each callee that gets a stream to seen.
func goesAround(fn *ast.FuncDecl, seen map[string]bool) (problems []string) {
	name := fn.Name.Name
	if fn.Recv != nil {
		name = strings.TrimPrefix(types.ExprString(fn.Recv.List[0].Type), "*") + "." + name
	}
	streams := map[string]bool{}
	stream := func(e ast.Expr) bool {
		switch text := types.ExprString(e); {
		case text == "os.Stdout", text == "os.Stderr", strings.HasSuffix(text, ".OutOrStdout()"),
			strings.HasSuffix(text, ".ErrOrStderr()"):
			return true
		default:
			return streams[text]
		}
	}
	calls := map[ast.Expr]bool{} // uses that were looked at: arguments, receivers, and streams assigned to variables
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i, e := range n.Rhs {
				call, ok := e.(*ast.CallExpr)
				if stream(e) || ok && types.ExprString(call.Fun) == "results" {
					streams[types.ExprString(n.Lhs[i])] = true
					if _, variable := n.Lhs[i].(*ast.Ident); variable {
						calls[e], calls[n.Lhs[i]] = true, true
					}
				}
			}
		case *ast.CallExpr:
			callee := types.ExprString(n.Fun)
			used := n.Args
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && stream(s.X) && s.Sel.Name != "Name" {
				used = append(slices.Clone(used), s.X)
			}
			for _, a := range used {
				if !stream(a) {
					continue
				}
				calls[a], seen[callee] = true, true
				_, listed := printers[callee]
				_, constant := constants[name]
				if !listed || strings.HasPrefix(callee, "fmt.") && !constant {
					problems = append(problems, name+" prints by "+callee+": use show.Text, show.JSON or a note")
				}
			}
		}
		return true
	})
	if _, ok := holders[name]; ok {
		return problems
	}
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		if e, ok := n.(ast.Expr); ok && stream(e) && !calls[e] {
			problems = append(problems, name+" keeps "+types.ExprString(e)+": say in holders what is printed there")
			return false
		}
		return true
	})
	return problems
}

// goesAround finds uses that are in none of the lists.
func TestPrintsThatGoAroundAreFound(t *testing.T) {
	for body, want := range map[string]string{
		"show.Text(c.OutOrStdout(), r.Table)":                          "",
		"r.Table(c.OutOrStdout())":                                     "prints by r.Table",
		"fmt.Fprintln(os.Stderr, guest.Words)":                         "prints by fmt.Fprintln",
		"o := c.OutOrStdout(); o.Write(words)":                         "prints by o.Write",
		"out, err := results(c, d, false); _ = err; r.Table(out)":      "prints by r.Table",
		"l.w = c.ErrOrStderr(); o := l":                                "keeps c.ErrOrStderr()",
		"func() { json.NewEncoder(c.OutOrStdout()).Encode(answer) }()": "prints by json.NewEncoder",
	} {
		f := testkit.Must(parser.ParseFile(token.NewFileSet(), "x.go", "package x\nfunc f() {"+body+"}", 0))(t)
		problems := goesAround(f.Decls[0].(*ast.FuncDecl), map[string]bool{})
		if got := strings.Join(problems, ", "); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q", body, got)
		}
	}
	testkit.OK(t, show.Text(io.Discard, func(io.Writer) error { return nil }))
	testkit.ErrorIs(t, show.Text(io.Discard, func(io.Writer) error { return os.ErrInvalid }), os.ErrInvalid)
}
