package guestimages

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

// NoInterpreterError is the error for a script whose interpreter is missing on this machine and in the overlay.
type NoInterpreterError struct {
	Script string
	Name   string // the program that the script or its env(1) names
	Guest  string // the guest path where it would be found
}

func (e *NoInterpreterError) Error() string {
	return fmt.Sprintf("%s: its interpreter %s is not on this machine, and not among what is copied", e.Script, e.Name)
}

// shebang is a script's parsed first line.
type shebang struct {
	interpreter string // an absolute path
	looksFor    string // the name or path that env looks for; "": the interpreter is not env
}

// parseShebang parses a line that begins with #! as the kernel does (execve(2), "Interpreter scripts"): at
// most one argument follows the interpreter, and it may contain blanks. It returns an error for a relative
// interpreter, for CR LF, and for most uses of env that start no program.
func parseShebang(line string) (s shebang, err error) {
	rest := strings.Trim(strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "#!"), " \t")
	if strings.HasSuffix(rest, "\r") {
		return s, errors.New("its first line ends with CR LF, and the kernel would take the CR for a part of the " +
			"interpreter's name: take the CRs out, as by sed -i 's/\\r$//'")
	}
	interpreter, arg := rest, ""
	if i := strings.IndexAny(rest, " \t"); i >= 0 {
		interpreter, arg = rest[:i], strings.TrimLeft(rest[i:], " \t")
	}
	switch {
	case interpreter == "":
		return s, errors.New("a script without an interpreter")
	case !path.IsAbs(interpreter):
		return s, fmt.Errorf("its interpreter %q is no absolute path: write #!/usr/bin/env %s", interpreter,
			path.Base(interpreter))
	}
	s.interpreter = path.Clean(interpreter)
	if path.Base(s.interpreter) != "env" {
		return s, nil
	}
	s.looksFor, err = envRuns(arg)
	return s, err
}

func envRuns(arg string) (string, error) {
	name, more, two := strings.Cut(arg, " ")
	switch {
	case arg == "" || strings.HasPrefix(arg, "-"):
	case two && !strings.Contains(name, "="):
		return "", fmt.Errorf("its first line has env look for a program of the name %q: write #!/usr/bin/env -S %s %s",
			arg, name, strings.TrimSpace(more))
	default:
		return arg, nil
	}
	words := strings.Fields(arg)
	for i := 0; i < len(words); i++ {
		switch w := strings.TrimPrefix(strings.TrimPrefix(words[i], "--split-string="), "-S"); {
		case w == "-u", w == "-C", w == "--unset", w == "--chdir":
			i++
		case w == "", strings.HasPrefix(w, "-"), strings.Contains(w, "="):
		default:
			return w, nil
		}
	}
	return "", errors.New("its interpreter is env, which is told no program to run")
}
