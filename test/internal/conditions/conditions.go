// Package conditions checks JSON documents against conditions of the form A OP B, such as
//
//	runs.0.tx.device == runs.0.bytes
//	runs.0.tx.host == 0
//	runs.1.tx.host >= 1000
//
// An operand is a path, or a number, true, false, null or "string" as in JSON; in a path, a number is an index of an
// array, and -len- stands for an array's length. OP is one of == and !=, which compare the values' texts, and <, <=,
// > and >=, which compare numbers.
package conditions

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Document maps the path of each value in a JSON document to the value as text, and has each array's length at the
// array's path with -len- appended.
type Document map[string]string

// Read reads a JSON document. It does not check what follows the document.
func Read(r io.Reader) (Document, error) {
	v, err := decode(r)
	if err != nil {
		return nil, err
	}
	d := Document{}
	flatten(d, "", v)
	return d, nil
}

// Holds reports whether a condition is true; a condition with an error is not. The text has the condition, the values
// if both were found, and the error if there is one.
func (d Document) Holds(condition string) (bool, string) { return check(d, condition) }

func decode(r io.Reader) (v any, err error) {
	d := json.NewDecoder(r)
	d.UseNumber()
	err = d.Decode(&v)
	return v, err
}

func flatten(values map[string]string, path string, v any) {
	values[path] = fmt.Sprint(v)
	in := strings.TrimPrefix(path+".", ".")
	switch v := v.(type) {
	case map[string]any:
		for key, below := range v {
			flatten(values, in+key, below)
		}
	case []any:
		values[in+"-len-"] = strconv.Itoa(len(v))
		for i, below := range v {
			flatten(values, in+strconv.Itoa(i), below)
		}
	}
}

// operand returns the text of the value at the path s or, without such a path, of the JSON literal s.
func operand(values map[string]string, s string) (string, error) {
	if v, there := values[s]; there {
		return v, nil
	}
	literal, err := decode(strings.NewReader(s))
	if err != nil {
		return "", fmt.Errorf("no %s", s)
	}
	return fmt.Sprint(literal), nil
}

func check(values map[string]string, cond string) (bool, string) {
	f := strings.SplitN(cond, " ", 3)
	if len(f) != 3 {
		return false, fmt.Sprintf("%s: not of the form A OP B", cond)
	}
	var operands [2]string
	for i, s := range []string{f[0], f[2]} {
		var err error
		if operands[i], err = operand(values, s); err != nil {
			return false, fmt.Sprintf("%s: %v", cond, err)
		}
	}
	a, b := operands[0], operands[1]
	text := fmt.Sprintf("%s   (%s, %s)", cond, a, b)
	if f[1] == "==" || f[1] == "!=" {
		return (a == b) == (f[1] == "=="), text
	}
	x, errX := strconv.ParseFloat(a, 64)
	y, errY := strconv.ParseFloat(b, 64)
	if errX != nil || errY != nil {
		return false, text + ": not numbers"
	}
	order := cmp.Compare(x, y)
	holds, known := map[string]bool{">=": order >= 0, ">": order > 0, "<=": order <= 0, "<": order < 0}[f[1]]
	if !known {
		text += ": unknown operator"
	}
	return holds, text
}
