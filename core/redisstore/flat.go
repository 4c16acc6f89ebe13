package redisstore

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/headgate/headgate/core"
)

//go:embed flat.lua
var flatLoop string

//go:embed flat_check.lua
var flatCheck string

//go:embed flat_part.lua
var flatPart string

// maxFlat is the most policies that a flat script is made for: Lua has room for 200
// local variables.
const maxFlat = 4

// flat returns the script for questions that all ask one limiter of these cells, or
// nil if they are too many. It is put together from the bodies of the twins' functions:
// to make functions and tables takes a server longer than to decide.
//
// The parts of a question are nested, so that each has the names of its twin to itself,
// and all have decided when the innermost writes. Only the constants get the number of
// their part, for they are read once, before the loop.
func (m *scripts) flat(cells []core.Cell) *script {
	if len(cells) > maxFlat {
		return nil
	}
	var b strings.Builder
	for i := range cells {
		b.WriteString(constants(&cells[i])[:2])
	}
	shape := b.String()
	if s, ok := m.made.Load(shape); ok {
		return s.(*script) //nolint:forcetypeassert // nothing else is stored
	}
	return m.make(shape, flatSource(cells))
}

func flatSource(cells []core.Cell) string {
	got, whole := "#KEYS == 1 and {call('GET', KEYS[1])} or call('MGET', unpack(KEYS))", "got[@i]"
	if slices.ContainsFunc(cells, func(c core.Cell) bool { return ranged(&c) }) {
		got, whole = "nil", "call('GET', key)" // each by itself
	}
	helpers, constants, checks, parts := "", "", "", "@parts"
	for i := range cells {
		cell := &cells[i]
		t := twin(cell.Step.Numbers().Algorithm.Twin())
		if h := t.helpers(); !strings.Contains(helpers, h) {
			helpers += h
		}
		value, known := whole, "value" // before and after a write
		if ranged(cell) {
			value, known = "call('GETRANGE', key, 0, NEAR - 1)", "nil"
		}
		refuse := ""
		if cell.CountDenied {
			refuse = "else\n" + t.body("refuse", "value, life, state")
		}
		state := t.body("state", "state")
		if state == "" {
			state = "if v then state = sub(v, #HEADER + 1) end"
		}
		fill := func(text string) string {
			text = strings.NewReplacer(
				"@value", value, "@known", known, "@state", state, "@save", body(save, "local function save(", ""),
				"@intact", t.body("intact", "intact"), "@admits", t.body("admits", ""),
				"@charge", t.body("charge", "value, life, state"), "@refuse", refuse,
			).Replace(text)
			text = t.names().ReplaceAllString(text, fmt.Sprintf("${0}%d", i+1))
			return strings.ReplaceAll(text, "@i", fmt.Sprintf("i + %d", i))
		}
		constants += fill(fmt.Sprintf("local p = ARGV[%d]\n", i+3) + t.constants())
		checks += fill(flatCheck)
		parts = strings.Replace(parts, "@parts", fill(flatPart), 1)
	}
	return prelude + helpers + strings.NewReplacer(
		"@constants", constants, "@got", got, "@checks", checks,
		"@parts", strings.Replace(parts, "@parts", "", 1), "@count", strconv.Itoa(len(cells)),
	).Replace(flatLoop)
}

// A twin is the source of one, whose layout the prelude tells.
type twin string

const (
	twinStart = "] = function(p)\n"
	twinTable = "  local twin = "
)

// helpers are the functions before the twin itself.
func (t twin) helpers() string {
	before, _, _ := strings.Cut(string(t), twinStart)
	return before[:strings.LastIndex(before, "\n")+1]
}

// constants are the statements that read them from p.
func (t twin) constants() string {
	_, rest, _ := strings.Cut(string(t), twinStart)
	rest, _, _ = strings.Cut(rest, twinTable)
	return rest
}

var declared = regexp.MustCompile(`local ([A-Z, ]+) =`)

// names matches those of the constants, and p.
func (t twin) names() *regexp.Regexp {
	all := []string{"p"}
	for _, found := range declared.FindAllStringSubmatch(t.constants(), -1) {
		all = append(all, strings.Split(found[1], ", ")...)
	}
	return regexp.MustCompile(`\b(` + strings.Join(all, "|") + `)\b`)
}

func (t twin) body(function, result string) string {
	return body(string(t), "  function twin."+function+"(", result)
}

// body returns what a function does, with its result assigned to names, or left where
// it is if there are none.
func body(source, start, result string) string {
	_, rest, found := strings.Cut(source, start)
	if !found {
		return ""
	}
	_, rest, _ = strings.Cut(rest, "\n")
	indent := start[:len(start)-len(strings.TrimLeft(start, " "))]
	rest, _, _ = strings.Cut(rest, "\n"+indent+"end\n")
	last := strings.LastIndex(rest, "\n") + 1
	if result == "" {
		return rest[:last]
	}
	return rest[:last] + strings.Replace(rest[last:], "return ", result+" = ", 1)
}
