package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"vnic.dev/vnic/tools/internal/entry"
	"vnic.dev/vnic/tools/internal/tree"
)

// static lists the tests and checks found in the sources, without those in tools/.
func static(dir string, files []string) ([]entry.Entry, error) {
	shared, err := checkers(dir, files)
	if err != nil {
		return nil, err
	}
	var all []entry.Entry
	programs := map[string][]*ast.File{} // by directory
	for _, name := range files {
		if strings.HasPrefix(name, "tools/") {
			continue
		}
		if pkg, target, ok := strings.Cut(name, "/testdata/fuzz/"); ok {
			all = append(all, entry.Entry{Kind: entry.Corpus, Package: pkg, Name: target})
			continue
		}
		lang, program := tree.LanguageOf(dir, name), tree.ClassOf(name) == tree.Acceptance
		tests := strings.HasSuffix(name, "_test.go") && !strings.Contains("/"+name, "/testdata/")
		if !program && !tests && lang != tree.Script {
			continue
		}
		src, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		var checks []string
		switch {
		case lang == tree.Go:
			file, err := parser.ParseFile(token.NewFileSet(), name, src, 0)
			if err != nil {
				return nil, err
			}
			if tests {
				all = append(all, ofTests(path.Dir(name), file)...)
			} else {
				programs[path.Dir(name)] = append(programs[path.Dir(name)], file)
			}
		case lang == tree.Script:
			checks = ofTestscript(string(src))
		case lang == tree.Shell || lang == tree.Python:
			checks = ofScript(string(src), shared)
		}
		all = append(all, ofChecks(name, checks)...)
	}
	for pkg, files := range programs {
		all = append(all, ofChecks(pkg, ofProgram(files))...)
	}
	return all, nil
}

func ofChecks(name string, texts []string) []entry.Entry {
	var all []entry.Entry
	seen := map[string]int{}
	for _, text := range texts {
		if seen[text]++; seen[text] > 1 {
			text += fmt.Sprintf(" #%d", seen[text])
		}
		all = append(all, entry.Entry{Kind: entry.Check, Package: name, Name: text})
	}
	return all
}

// ofTests lists TestMain, tests, benchmarks, fuzz targets and examples of a file, and the parts of tests and benchmarks
// that have literal names.
func ofTests(pkg string, file *ast.File) []entry.Entry {
	var all []entry.Entry
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Recv != nil {
			continue
		}
		for _, k := range []struct{ prefix, param, kind, part string }{
			{"Test", "T", entry.Test, entry.Subtest}, {"Test", "M", entry.Main, ""},
			{"Benchmark", "B", entry.Bench, entry.Sub}, {"Fuzz", "F", entry.Fuzz, ""}, {"Example", "", entry.Example, ""},
		} {
			if isTest(f, k.prefix, k.param) {
				all = append(all, entry.Entry{Kind: k.kind, Package: pkg, Name: f.Name.Name})
				if k.part != "" {
					for _, sub := range subtests(f.Body, f.Name.Name) {
						all = append(all, entry.Entry{Kind: k.part, Package: pkg, Name: sub})
					}
				}
			}
		}
	}
	return all
}

// isTest reports whether f's name begins with prefix and, by cmd/go's rule, names a test, and whether f's only
// parameter is a pointer to a type called param; with param "", f must have no parameters.
func isTest(f *ast.FuncDecl, prefix, param string) bool {
	rest, ok := strings.CutPrefix(f.Name.Name, prefix)
	if first, _ := utf8.DecodeRuneInString(rest); !ok || rest != "" && unicode.IsLower(first) {
		return false
	}
	params := f.Type.Params.List
	if param == "" {
		return len(params) == 0
	}
	if len(params) != 1 || len(params[0].Names) > 1 {
		return false
	}
	star, ok := params[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	sel, ok := star.X.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == param
}

// subtests lists the full names of the parts that body, the function of the test called name, starts by calls of Run
// with literal names, and of their parts.
func subtests(body ast.Node, name string) []string {
	var all []string
	ast.Inspect(body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) != 2 {
			return true
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || sel.Sel.Name != "Run" {
			return true
		}
		_, function := call.Args[1].(*ast.FuncLit)
		lit, ok := call.Args[0].(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return !function // the names of its parts are unknown, too
		}
		text, err := strconv.Unquote(lit.Value)
		if err != nil || text == "" {
			return false
		}
		sub := name + "/" + rewrite(text)
		all = append(all, sub)
		all = append(all, subtests(call.Args[1], sub)...)
		return false
	})
	return all
}

// rewrite changes a subtest's name as package testing does (testing/match.go).
func rewrite(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case unicode.IsSpace(r):
			b.WriteByte('_')
		case !strconv.IsPrint(r):
			q := strconv.QuoteRune(r)
			b.WriteString(q[1 : len(q)-1])
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
