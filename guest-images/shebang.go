package guestimages

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

// NoInterpreterError says that the program that a script names in its first line is not to be had.
type NoInterpreterError struct {
	Script string // on this machine
	Name   string // what the script, or env(1) for it, looks for
	Guest  string // the place in the guest where it would be found
}

func (e *NoInterpreterError) Error() string {
	return fmt.Sprintf("%s: its interpreter %s is not on this machine, and not among what is copied", e.Script, e.Name)
}

// shebang is a script's first line, as the kernel and env(1) read it.
type shebang struct {
	interpreter string // an absolute path
	looksFor    string // what env is to run: a name, or a path; "": the interpreter is not env
}

// parseShebang reads a line that begins with #! (execve(2), "Interpreter scripts"): after the interpreter there is at
// most one argument, in which blanks are like any other character. env splits it with -S (env(1)).
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

// envRuns finds the program in env's one argument.
func envRuns(arg string) (string, error) {
	if !strings.HasPrefix(arg, "-") {
		if name, more, two := strings.Cut(arg, " "); two && !strings.Contains(name, "=") {
			return "", fmt.Errorf("its first line has env look for a program of the name %q: write #!/usr/bin/env -S %s %s",
				arg, name, strings.TrimSpace(more))
		}
		if arg == "" {
			return "", errors.New("its interpreter is env, which is told no program to run")
		}
		return arg, nil
	}
	words := strings.Fields(arg)
	for i := 0; i < len(words); i++ {
		switch w := words[i]; {
		case w == "-u", w == "-C", w == "--unset", w == "--chdir": // each has a word more
			i++
		case strings.HasPrefix(w, "-S") && len(w) > len("-S"):
			return w[len("-S"):], nil
		case strings.HasPrefix(w, "--split-string="):
			return strings.TrimPrefix(w, "--split-string="), nil
		case strings.HasPrefix(w, "-"), strings.Contains(w, "="):
		default:
			return w, nil
		}
	}
	return "", errors.New("its interpreter is env, which is told no program to run")
}
