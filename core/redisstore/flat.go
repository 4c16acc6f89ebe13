package redisstore

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/step"
)

// A flat script answers questions that all ask one limiter, and are alike but for the key
// and n. It decides as the main script does, but without functions and tables for each
// call: to make those takes a server longer than to decide. It is put together from
// templates, flat*.lua, and from fragments of the twins in core/step and of save.lua.
// testdata has some of the scripts that result.
//
// The parts of a question are nested, so that the local names of each are its own, and
// all have decided when the innermost writes. Only the constants get the number of their
// part, as they are read once, before the loop.
//
// The rules for a twin, beyond those in prelude.lua:
//
//  1. A fragment is the lines between "--@name" and "--@end". Every twin has the fragments
//     constants, intact, admits and charge. It has the fragments refuse, grows and state if it
//     has these functions, and helpers if it has functions of its own.
//  2. The line "--@constants" lists all names that the fragment declares, which are in
//     upper case.
//  3. The fragments intact, charge, refuse, grows and state end with a return statement on
//     one line. Apart from that, there are return statements in local functions only.
//  4. The parameters of charge, refuse, grows and state have the names that admits returns,
//     or are "_". Those of grows are declared by intact too.
//  5. Only admits declares the names value, life and state.
//  6. The names that helpers declares are different from those of all other twins.
//
// A fragment that is missing or has no end is a panic when the package is initialized.
// Tests check the other rules.
var (
	flatTwins = parseTwins()                       //nolint:gochecknoglobals // never changed
	flatSave  = fragment("save.lua", save, "save") //nolint:gochecknoglobals // never changed

	//go:embed flat.lua
	flatLoop string

	//go:embed flat_check.lua
	flatCheck string

	//go:embed flat_part.lua
	flatPart string
)

// maxFlat is the most policies that a flat script is made for, as Lua allows 200 local
// variables.
const maxFlat = 4

// A flatTwin has the fragments of a twin; refuse, grows, state and helpers may be empty.
type flatTwin struct {
	names *regexp.Regexp // of the constants, and p

	helpers, constants                           string
	intact, admits, charge, refuse, grows, state string
}

func parseTwins() map[step.Algorithm]flatTwin {
	all := make(map[step.Algorithm]flatTwin)
	for _, a := range scripted {
		all[a] = parseTwin(a.String(), a.Twin())
	}
	return all
}

func parseTwin(name, source string) flatTwin {
	optional := func(part string) string {
		if !strings.Contains(source, "--@"+part+"\n") {
			if strings.Contains(source, "function twin."+part+"(") {
				panic("headgate: twin " + name + ": no --@" + part)
			}
			return ""
		}
		return fragment(name, source, part)
	}
	_, rest, found := strings.Cut(source, "--@constants ")
	list, _, _ := strings.Cut(rest, "\n")
	if !found {
		panic("headgate: twin " + name + ": no --@constants with names")
	}
	return flatTwin{
		names:     regexp.MustCompile(`\b(p|` + strings.ReplaceAll(list, ", ", "|") + `)\b`),
		helpers:   optional("helpers"),
		constants: fragment(name, source, "constants "+list),
		intact:    assign(name, "intact", fragment(name, source, "intact")),
		admits:    fragment(name, source, "admits"),
		charge:    assign(name, "value, life, state", fragment(name, source, "charge")),
		refuse:    assign(name, "value, life, state", optional("refuse")),
		grows:     assign(name, "local more", optional("grows")),
		state:     assign(name, "state", optional("state")),
	}
}

// fragment returns the lines after the marker of a part, up to its end.
func fragment(name, source, part string) string {
	_, rest, found := strings.Cut(source, "--@"+part+"\n")
	text, _, ended := strings.Cut(rest, "--@end\n")
	if !found || !ended {
		panic("headgate: " + name + ": no --@" + part + ", or no --@end after it")
	}
	return strings.TrimRight(text, " ") // the indentation of the end
}

// assign turns the return statement in the last line of a fragment into an assignment.
func assign(name, to, text string) string {
	if text == "" {
		return ""
	}
	last := strings.LastIndexByte(text[:len(text)-1], '\n') + 1
	line := strings.TrimLeft(text[last:], " ")
	if !strings.HasPrefix(line, "return ") {
		panic("headgate: " + name + ": the last line of a fragment does not return: " + line)
	}
	return text[:len(text)-len(line)] + to + " = " + strings.TrimPrefix(line, "return ")
}

// flat returns the flat script for these cells, or nil if they are too many.
func (m *scripts) flat(cells []core.Cell) *script {
	if len(cells) > maxFlat {
		return nil
	}
	var b strings.Builder
	for i := range cells {
		b.WriteString(constants(&cells[i])[:2]) // all that the source depends on
	}
	shape := b.String()
	if s, ok := m.made.Load(shape); ok {
		return s.(*script) //nolint:forcetypeassert // nothing else is stored
	}
	return m.make(shape, flatSource(cells))
}

func flatSource(cells []core.Cell) string {
	n := fmt.Sprintf("  local n = 1\n  if ns ~= '' then n = read('>I7', ns, 7 * (i - 1) / %d + 1) end\n", len(cells))
	units, heavy := "", ""
	// Values are read in one call, unless a part of one is enough.
	got, whole := "#KEYS == 1 and {call('GET', KEYS[1])} or call('MGET', unpack(KEYS))", "got[@i]"
	if slices.ContainsFunc(cells, func(c core.Cell) bool { return ranged(&c) }) {
		got, whole = "nil", "call('GET', key)"
		units, heavy = n, fmt.Sprintf("if words > MAXWORDS and #KEYS > %d then return '' end\n", len(cells))
	}
	var helpers []string
	var constants, checks strings.Builder
	parts := "@parts"
	for i := range cells {
		cell := &cells[i]
		t := flatTwins[cell.Step.Numbers().Algorithm]
		if !slices.Contains(helpers, t.helpers) {
			helpers = append(helpers, t.helpers)
		}
		value, known, typed, grows := whole, "value", "", "" // known: after a write
		if ranged(cell) {
			grows = t.grows + "    words = words + more\n"
			value, known = "call('GETRANGE', key, 0, NEAR - 1)", "nil"
		}
		if len(cells) > 1 { // nothing may be written if one of them cannot be
			typed = "  if not v then v = call('GET', key) end -- fails if it has another type\n"
		}
		refuse := ""
		if cell.CountDenied {
			refuse = "  else\n" + t.refuse
		}
		state := t.state
		if state == "" {
			state = "    if v then state = sub(v, #HEADER + 1) end\n"
		}
		fill := func(text string) string {
			text = strings.NewReplacer(
				"@value", value, "@known", known, "@state\n", state, "@save\n", flatSave,
				"@typed\n", typed, "@intact\n", t.intact, "@grows\n", grows, "@admits\n", t.admits, "@charge\n", t.charge, "@refuse\n", refuse,
			).Replace(text)
			text = t.names.ReplaceAllString(text, fmt.Sprintf("${0}%d", i+1))
			return strings.ReplaceAll(text, "@i", fmt.Sprintf("i + %d", i))
		}
		constants.WriteString(fill(fmt.Sprintf("local p = ARGV[%d]\n", i+3) + t.constants))
		checks.WriteString(fill(flatCheck))
		parts = strings.Replace(parts, "@parts", fill(flatPart), 1)
	}
	parts = strings.Replace(parts, "@parts\n", "", 1) // of the innermost
	return prelude + strings.Join(helpers, "") + strings.NewReplacer(
		"@constants\n", constants.String(), "@got", got, "@checks\n", checks.String(), "@parts\n", parts,
		"@units\n", units, "@heavy\n", heavy, "@n\n", n,
		"@count", strconv.Itoa(len(cells)),
	).Replace(flatLoop)
}
