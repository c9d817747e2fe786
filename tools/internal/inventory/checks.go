package main

import (
	"go/ast"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"vnic.dev/vnic/tools/internal/entry"
	"vnic.dev/vnic/tools/internal/tree"
)

// What a check of a script is.
//
// In shell and Python of test/, line by line, after lines that end in a backslash are joined
// and blanks are made one: a line is a check if it
//   - calls fail, or a function (of this script, or of one that is sourced) whose body calls such a one;
//   - prints a result or a heading: echo "ok ...", echo "== ...", print "ok ...";
//   - ends its program badly: exit 1, sys.exit(, raise, assert;
//   - has a condition of jsoncheck, as "runs.0.tx.host == 0";
//   - consists of a grep, cmp, diff, test or [, which set -e makes a check; or
//   - is a row of a literal of several lines that such a line, or an assignment, has begun: a table.
//
// In a testscript: each command but those that only prepare (env, mkdir, cp ...).
//
// In the Go programs of test/: the text of each error that they make, and of each result, by a
// function that prints "ok", or heading that they print.
var (
	definition = regexp.MustCompile(`^\s*([a-z_][a-zA-Z0-9_]*)\(\) [{(]`)
	result     = regexp.MustCompile(`\b(echo|printf|print)\(? ?["'](ok|==|FAIL|SLOW|skip)\b`)
	heading    = regexp.MustCompile(`\becho ["']?==`)
	badEnd     = regexp.MustCompile(`\bexit [1-9]|\bsys\.exit\(|\braise\b|\bassert\b`)
	condition  = regexp.MustCompile(`["'][a-z][\w.$]* (==|!=|>=|<=|<|>) `)
	bare       = regexp.MustCompile(`^(! )?(grep|cmp|diff|test|\[|\[\[) `)
	assignment = regexp.MustCompile(`^(local )?[a-z_]+=['"]`)
	setup      = regexp.MustCompile(`^(env|cd|mkdir|cp|rm|mv|chmod|symlink|wait|stop) `)
	verb       = regexp.MustCompile(`%[-+# 0-9.*]*[a-zA-Z]`)
	document   = regexp.MustCompile(`<<-?\s*["']?([A-Za-z_]+)["']?`)
	letter     = regexp.MustCompile(`[A-Za-z]{2}`)
)

// ofScript lists the checks of a script of shell or Python. shared has the functions that check in
// the scripts that all source.
func ofScript(src string, shared map[string]bool) []string {
	lines := joined(src)
	known := calls(checkersOf(lines, shared))
	var all []string
	var quote byte // an open literal
	rows := false  // its lines are checks
	end := ""      // of the here-document that this is in
	for _, line := range lines {
		text := strings.Join(strings.Fields(line), " ")
		if text == end && end != "" {
			end = ""
			continue
		}
		inside := quote != 0
		before := quote
		if end == "" {
			quote = openQuote(line, quote)
			if m := document.FindStringSubmatch(strings.ReplaceAll(line, "<<<", "")); m != nil && !inside {
				end, quote = m[1], 0
			}
		}
		if text == "" || !inside && strings.HasPrefix(text, "#") {
			quote = before
			continue
		}
		check := known.MatchString(text) || result.MatchString(text) || heading.MatchString(text) ||
			badEnd.MatchString(text) || condition.MatchString(text) || bare.MatchString(text)
		if !inside {
			rows = quote != 0 && (check || assignment.MatchString(text))
			check = check || rows && assignment.MatchString(text)
		}
		if definition.ReplaceAllString(text, "") == "" {
			continue // the head of a function
		}
		if check || inside && rows {
			all = append(all, escape(text))
		}
	}
	return all
}

// joined has the lines of src, those that end in a backslash with their next.
func joined(src string) []string {
	var all []string
	open := false
	for line := range strings.Lines(src) {
		line = strings.TrimRight(line, "\r\n")
		more := strings.HasSuffix(line, "\\")
		line = strings.TrimSuffix(line, "\\")
		if open {
			all[len(all)-1] = strings.TrimRight(all[len(all)-1], " \t") + " " + strings.TrimLeft(line, " \t")
		} else {
			all = append(all, line)
		}
		open = more
	}
	return all
}

// openQuote says which quote is open at the end of a line at whose beginning one was. It knows that
// $(...) within double quotes has quotes of its own only as far as they come in pairs.
func openQuote(line string, quote byte) byte {
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\\' && quote != '\'':
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '#' && (i == 0 || line[i-1] == ' '):
			return 0
		case c == '\'' || c == '"':
			quote = c
		}
	}
	return quote
}

// checkers finds the functions that check in the scripts that others source: those that do not begin
// with #!.
func checkers(dir string, files []string) (map[string]bool, error) {
	found := map[string]bool{"fail": true}
	for range 2 { // the second time for those that call what a later file defines
		for _, name := range files {
			if tree.ClassOf(name) != tree.Acceptance || path.Ext(name) != ".sh" {
				continue
			}
			src, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				return nil, err
			}
			if !strings.HasPrefix(string(src), "#!") {
				found = checkersOf(joined(string(src)), found)
			}
		}
	}
	return found, nil
}

// checkersOf adds to known the functions of a script whose bodies call one that is known.
func checkersOf(lines []string, known map[string]bool) map[string]bool {
	found := map[string]bool{}
	for k := range known {
		found[k] = true
	}
	for grown := true; grown; {
		grown = false
		now := calls(found)
		in, indent := "", ""
		for _, line := range lines {
			if m := definition.FindStringSubmatch(line); m != nil {
				in, indent = m[1], line[:len(line)-len(strings.TrimLeft(line, " \t"))]
				line = line[len(m[0]):]
			}
			if in != "" && !found[in] && now.MatchString(strings.TrimSpace(line)) {
				found[in], grown = true, true
			}
			if strings.TrimRight(line, " ") == indent+"}" || in != "" && strings.HasSuffix(line, "; }") {
				in = ""
			}
		}
	}
	return found
}

// calls matches a line that calls one of these: at its beginning, or after what may precede a command.
func calls(names map[string]bool) *regexp.Regexp {
	var b strings.Builder
	for name := range names {
		if b.Len() > 0 {
			b.WriteByte('|')
		}
		b.WriteString(regexp.QuoteMeta(name))
	}
	before := `(?:^|[;&|{(!] ?|\b(?:then|do|else|in [^;]*\)) )(?:[A-Z_]+=\S* )*`
	return regexp.MustCompile(before + `(?:` + b.String() + `)(?:[ (;)]|$)`)
}

// ofTestscript lists the commands of a testscript, up to its files.
func ofTestscript(src string) []string {
	var all []string
	for line := range strings.Lines(src) {
		text := strings.Join(strings.Fields(line), " ")
		if strings.HasPrefix(text, "-- ") && strings.HasSuffix(text, " --") {
			break
		}
		if text != "" && text[0] != '#' && !setup.MatchString(text) {
			all = append(all, escape(text))
		}
	}
	return all
}

// resultFunctions finds the functions of a program that print that something was as it must be:
// those with a literal that begins with "ok ", in the files of a directory.
func resultFunctions(files []*ast.File) map[string]bool {
	found := map[string]bool{}
	for _, file := range files {
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Body == nil || f.Name.Name == "main" {
				continue
			}
			ast.Inspect(f.Body, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && strings.HasPrefix(lit.Value, `"ok `) {
					found[f.Name.Name] = true
				}
				return true
			})
		}
	}
	return found
}

// ofProgram lists the texts of errors and of results in the Go files of a directory.
func ofProgram(files []*ast.File) []string {
	results := resultFunctions(files)
	var all []string
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			var function string
			switch f := call.Fun.(type) {
			case *ast.Ident:
				function = f.Name
			case *ast.SelectorExpr:
				function = f.Sel.Name
			}
			for _, arg := range call.Args {
				lit, ok := arg.(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					continue
				}
				text, err := strconv.Unquote(lit.Value)
				check := results[function] || strings.HasPrefix(text, "ok ") || strings.HasPrefix(text, "== ")
				text = strings.TrimSpace(strings.TrimPrefix(text, "ok "))
				switch function {
				case "Errorf", "New", "Fatal", "Fatalf", "Error", "fail", "failf", "errorf":
					check = true
				}
				if err == nil && check && letter.MatchString(verb.ReplaceAllString(text, "")) {
					all = append(all, escape(strconv.Quote(text)))
				}
				break
			}
			return true
		})
	}
	return all
}

// escape keeps entry.Arrow out of a text.
func escape(text string) string {
	return strings.ReplaceAll(text, entry.Arrow, " => ")
}
