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

// ofScript, ofTestscript and ofProgram use these expressions to find checks in scripts and Go programs.
//
// In shell and Python scripts of test/, a line that is no comment (joined after a backslash, blanks reduced) is a check
// if it
//   - calls fail, or a function (of this script, or of any script that is sourced) that directly or indirectly calls
//     fail;
//   - prints a result or a heading, such as echo "ok ...", echo "== ...", print "FAIL ...";
//   - may end its program with an error: exit 1 (up to 9), sys.exit(, raise, assert;
//   - has a condition of jsoncheck, such as "runs.0.tx.host == 0";
//   - begins with grep, cmp, diff, test, [ or [[, or with one of them after "! "; or
//   - is a line of a quoted text of several lines that begins in a check or in an assignment.
//
// In a testscript each command is a check, except commands that only prepare or wait, with arguments (setup).
// In the Go programs of test/ a check is the first string literal among the arguments of a call, if it is the text of
// an error, of a result (it begins with "ok ", or the called function, which is not main, has such a literal), or of a
// heading ("== ").
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

// ofScript lists the checks of a script; shared has the result of checkers.
func ofScript(src string, shared map[string]bool) []string {
	lines := joined(src)
	known := calls(checkersOf(lines, shared))
	var all []string
	var quote byte // of the literal that is open at the end of the previous line
	rows := false  // the lines of the open literal are checks
	end := ""      // the word that ends the current here-document
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
			continue // the line only begins a function
		}
		if check || inside && rows {
			all = append(all, escape(text))
		}
	}
	return all
}

// joined returns the lines of src; a line that ends in a backslash is joined with the next one.
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

// openQuote returns the quote that is open at the end of a line, or 0; quote is the one that is open at its beginning,
// or 0.
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

// checkers returns fail, and the functions that directly or indirectly call it in the scripts that others source (the
// .sh files of test/ that do not begin with #!).
func checkers(dir string, files []string) (map[string]bool, error) {
	found := map[string]bool{"fail": true}
	for range 2 { // functions may call functions of a later file
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

// checkersOf returns the functions in known, and the functions of a script that directly or indirectly call one of
// them.
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

// calls returns an expression for lines that call one of the named functions.
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

// resultFunctions returns the functions but main of a directory's Go files that have a literal which begins with "ok ".
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

// ofProgram lists texts of errors, results and headings in Go files.
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

func escape(text string) string {
	return strings.ReplaceAll(text, entry.Arrow, " => ")
}
