// Command jsoncheck holds JSON on stdin against conditions.
//
//	jsoncheck 'runs.0.tx.device == runs.0.bytes' 'runs.0.tx.host == 0' 'runs.1.tx.host >= 1000'
//
// An operand is a number, true, false, a "string", or a path; an index of an array is a number in the path, -len- its
// length. It prints each condition with both values, and exits with 1 if one does not hold.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
)

func main() {
	var doc any
	d := json.NewDecoder(os.Stdin)
	d.UseNumber()
	if err := d.Decode(&doc); err != nil {
		fmt.Fprintln(os.Stderr, "jsoncheck: no JSON:", err)
		os.Exit(1)
	}
	failed := len(os.Args) < 2
	for _, cond := range os.Args[1:] {
		ok, text := check(doc, cond)
		mark := "ok  "
		if !ok {
			mark, failed = "FAIL", true
		}
		fmt.Println(mark, text)
	}
	if failed {
		os.Exit(1)
	}
}

func check(doc any, cond string) (bool, string) {
	f := strings.Fields(cond)
	if len(f) != 3 {
		return false, fmt.Sprintf("%s: not of the form A OP B", cond)
	}
	a, errA := value(doc, f[0])
	b, errB := value(doc, f[2])
	for _, err := range []error{errA, errB} {
		if err != nil {
			return false, fmt.Sprintf("%s: %v", cond, err)
		}
	}
	text := fmt.Sprintf("%s   (%v, %v)", cond, a, b)
	if f[1] == "==" {
		return fmt.Sprint(a) == fmt.Sprint(b), text
	}
	if f[1] == "!=" {
		return fmt.Sprint(a) != fmt.Sprint(b), text
	}
	x, errX := strconv.ParseFloat(fmt.Sprint(a), 64)
	y, errY := strconv.ParseFloat(fmt.Sprint(b), 64)
	if errX != nil || errY != nil {
		return false, text + ": not numbers"
	}
	switch f[1] {
	case ">=":
		return x >= y, text
	case ">":
		return x > y, text
	case "<=":
		return x <= y, text
	case "<":
		return x < y, text
	}
	return false, text + ": unknown operator"
}

func value(doc any, s string) (any, error) {
	if _, err := strconv.ParseFloat(s, 64); err == nil || s == "true" || s == "false" || s == "null" {
		if s == "null" {
			return nil, nil
		}
		return s, nil
	}
	if strings.HasPrefix(s, `"`) {
		return strings.Trim(s, `"`), nil
	}
	at := doc
	for _, key := range strings.Split(s, ".") {
		switch v := at.(type) {
		case map[string]any:
			next, ok := v[key]
			if !ok {
				return nil, fmt.Errorf("no %s", s)
			}
			at = next
		case []any:
			if key == "-len-" {
				at = len(v)
				continue
			}
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(v) {
				return nil, fmt.Errorf("no %s", s)
			}
			at = v[i]
		default:
			return nil, fmt.Errorf("no %s", s)
		}
	}
	return at, nil
}
