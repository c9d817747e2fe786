package main

import (
	"encoding/json"
	"errors"
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
	"time"

	"vnic.dev/vnic/internal/testkit"
)

const rudeText = "a\x1b[31mb\x07c\u009b31md\u202egpj\u2028e\x7f"

// What a guest says at set-up, or a server in an error, is shown in a note as one line without what a terminal obeys.
func TestNotesArePlain(t *testing.T) {
	type named string
	for name, arg := range map[string]any{"string": rudeText, "error": errors.New(rudeText), "named": named(rudeText),
		"list": []string{rudeText}, "struct": struct{ Text string }{rudeText}} {
		var b strings.Builder
		u := newUI(&b, false)
		u.note("%s: %v, %5d, %*d, %-4s|", "guest0\nnote: fine", arg, 7, 3, 8, time.Second)
		u.done()
		got := b.String()
		if want := "note: guest0; note: fine: "; !strings.HasPrefix(got, want) || !strings.Contains(got, "abc31mdgpje") ||
			!strings.HasSuffix(got, ",     7,   8, 1s  |\n") || strings.Count(got, "\n") != 1 ||
			strings.ContainsAny(got, "\x1b\x07\u009b\u202e\u2028\x7f") {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// What a terminal obeys is escaped in JSON, which says the same as before.
func TestJSONIsPlain(t *testing.T) {
	in := map[string]string{rudeText: rudeText + "\u2066\u061c \"ü\" 你好 \U0001f600"}
	var b strings.Builder
	testkit.OK(t, printJSON(&b, in))
	if strings.ContainsAny(b.String(), "\x1b\x07\u009b\u202e\u2028\x7f\u2066\u061c") ||
		!strings.Contains(b.String(), `\u009b31md\u202egpj\u2028e\u007f\u2066\u061c`) || !strings.Contains(b.String(), "ü") {
		t.Errorf("%q", b.String())
	}
	var out map[string]string
	testkit.OK(t, json.Unmarshal([]byte(b.String()), &out))
	testkit.Equal(t, "read again", out[rudeText], in[rudeText])
}

// printers may be given a command's stdout or stderr, for the reason that is said. What else is to be printed goes
// through printText, printJSON or a note of ui.
var printers = map[string]string{
	"printText":               "drops what a terminal obeys",
	"printJSON":               "escapes it",
	"printEncoded":            "escapes it",
	"newUI":                   "its notes are plain, its stages are ours, its log is quoted by slog",
	"c.SetOut":                "help, which is ours",
	"realMain":                "the commands, which are looked at here",
	"tellFlows":               "by printText",
	"printReport":             "by printText, then coloured",
	"printDoctor":             "facts are plain, then coloured",
	"printCacheJSON":          "by printJSON",
	"printImported":           "words that an import checks, and the user's path",
	"printVersion":            "this program's",
	"serve.PrintCapabilities": "constant",
	"image.WriteList":         "constant",
	"image.Build":             "the user's paths, and names of files that are ours",
	"isTerminal":              "prints nothing",
	"newRepaint":              "paints by printText",
	"watch":                   "a number",
	"fmt.Fprint":              "see constants",
	"fmt.Fprintf":             "see constants",
	"fmt.Fprintln":            "see constants",
	"io.Copy":                 "JUnit's XML, escaped by encoding/xml",
	"io.WriteString":          "help, which is ours",
	"out.Write":               "the schema, which is ours",
}

// constants are the functions that print by fmt: what is theirs is a constant, a number, or the user's own word.
var constants = map[string]string{
	"benchCommand":       "schemas",
	"runCommand":         "the schema, the list of faults",
	"selftestCommand":    "the list of faults",
	"serveCommand":       "a number; and what plainly has made",
	"main":               "constant",
	"cacheRemoveCommand": "names that a pattern of ours lets in",
	"cacheExportCommand": "the user's file",
	"beginMachine":       "our error",
}

// holders keep a stream without printing.
var holders = map[string]string{
	"bootCommand":        "guests' programs: their output is what the user asked for, byte by byte",
	"selftestCommand":    "the program of --shell, as of boot",
	"imageExportCommand": "the program itself, not to a terminal",
	"serveCommand":       "lines, which log and note write: slog quotes, plainly filters",
	"keepSpare":          "a vnic of its own",
	"results":            "gives it to its caller, where it is followed",
	"readerGone":         "its name",
}

// Invariant: vnic: What is printed and may be another's words goes through one filter: a print that goes around it is
// found.
func TestEachPrintIsPlain(t *testing.T) {
	fset := token.NewFileSet()
	files := testkit.Must(filepath.Glob("*.go"))(t)
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

// goesAround finds what a function does with a command's streams that is not listed.
func goesAround(fn *ast.FuncDecl, seen map[string]bool) (problems []string) {
	streams := map[string]bool{} // its variables
	stream := func(e ast.Expr) bool {
		switch text := types.ExprString(e); {
		case text == "os.Stdout", text == "os.Stderr", strings.HasSuffix(text, ".OutOrStdout()"),
			strings.HasSuffix(text, ".ErrOrStderr()"):
			return true
		default:
			return streams[text]
		}
	}
	calls := map[ast.Expr]bool{} // streams that are arguments, or receivers
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i, e := range n.Rhs {
				call, ok := e.(*ast.CallExpr)
				if stream(e) || ok && types.ExprString(call.Fun) == "results" {
					streams[types.ExprString(n.Lhs[i])] = true
					if _, variable := n.Lhs[i].(*ast.Ident); variable { // it is followed
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
				_, constant := constants[fn.Name.Name]
				if !listed || strings.HasPrefix(callee, "fmt.") && !constant {
					problems = append(problems, fn.Name.Name+" prints by "+callee+": use printText, printJSON or ui.note")
				}
			}
		}
		return true
	})
	if _, ok := holders[fn.Name.Name]; ok {
		return problems
	}
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		if e, ok := n.(ast.Expr); ok && stream(e) && !calls[e] {
			problems = append(problems, fn.Name.Name+" keeps "+types.ExprString(e)+": say in holders what is printed there")
			return false
		}
		return true
	})
	return problems
}

// Negative control: prints that go around are found.
func TestPrintsThatGoAroundAreFound(t *testing.T) {
	for body, want := range map[string]string{
		"printText(c.OutOrStdout(), r.Table)":                          "",
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
	testkit.OK(t, printText(io.Discard, func(io.Writer) error { return nil }))
	testkit.ErrorIs(t, printText(io.Discard, func(io.Writer) error { return os.ErrInvalid }), os.ErrInvalid)
}
