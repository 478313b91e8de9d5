package main

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"slices"
	"strconv"
	"strings"
)

// instrumenter inserts the mutants of one file.
//
// A mutant never changes which expressions are evaluated before it, nor types: it changes an
// existing value (mutateCond, mutateZero, …), or omits a statement. So the code still
// compiles.
type instrumenter struct {
	fset   *token.FileSet
	file   *ast.File
	source string
	pkg    *types.Package
	info   *types.Info
	base   mutant // the values that the mutants share
	next   *int   // the last assigned ID

	mutants []*mutant
	edits   edits
}

// ignoredCalls are calls that no test needs to notice.
var ignoredCalls = []string{"Tracef", "Debugf"}

// instrument finds the file's mutants.
func (in *instrumenter) instrument() {
	ast.PreorderStack(in.file, nil, func(n ast.Node, stack []ast.Node) bool {
		if _, ok := n.(*ast.File); ok {
			return true
		}
		switch n := n.(type) {
		case *ast.GenDecl:
			return n.Tok == token.VAR
		case *ast.CallExpr:
			if isIgnored(n) {
				return false
			}
		}
		at := site{in, append(slices.Clip(stack), n)}
		if isStatementOfList(n, stack[len(stack)-1]) {
			at.statement(n.(ast.Stmt))
		}
		switch n := n.(type) {
		case ast.Expr:
			at.expression(n)
		case *ast.SwitchStmt:
			at.tagSwitch(n)
		case *ast.CommClause:
			at.communication(n)
		case *ast.ReturnStmt:
			at.results(n)
		}
		return true
	})
}

// site is a position in a file at which mutants are made: the last node of a stack of nested
// nodes.
type site struct {
	*instrumenter
	stack []ast.Node
}

func (in *instrumenter) offset(p token.Pos) int {
	return in.fset.Position(p).Offset
}

func (in *instrumenter) text(n ast.Node) string {
	return in.source[in.offset(n.Pos()):in.offset(n.End())]
}

func (in *instrumenter) wrap(n ast.Node, before, after string) {
	in.edits.wrap(in.offset(n.Pos()), in.offset(n.End()), before, after)
}

// add makes a mutant of a part of the site, and returns its number.
func (s site) add(n ast.Node, change string) int {
	*s.next++
	m := s.base
	m.id = *s.next
	m.line = s.fset.Position(n.Pos()).Line
	m.change = change
	m.context = s.context()
	m.fn = s.function()
	for _, other := range s.mutants {
		if other.fn == m.fn && other.context == m.context && other.change == m.change {
			m.again++
		}
	}
	s.mutants = append(s.mutants, &m)
	return m.id
}

// context returns the text of the innermost statement around the site, without its blocks, or
// all of a declaration outside functions.
func (s site) context() string {
	for _, n := range slices.Backward(s.stack) {
		end := n.End()
		switch n := n.(type) {
		case *ast.BlockStmt, *ast.LabeledStmt:
			continue
		case *ast.IfStmt:
			end = n.Body.Pos()
		case *ast.ForStmt:
			end = n.Body.Pos()
		case *ast.RangeStmt:
			end = n.Body.Pos()
		case *ast.SwitchStmt:
			end = n.Body.Pos()
		case *ast.TypeSwitchStmt:
			end = n.Body.Pos()
		case *ast.CaseClause:
			end = n.Colon
		case *ast.CommClause:
			end = n.Colon
		case ast.Stmt, ast.Spec:
		default:
			continue
		}
		return short(s.source[s.offset(n.Pos()):s.offset(end)])
	}
	return ""
}

// function returns the name of the declaration around the site.
func (s site) function() string {
	for _, n := range s.stack {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv == nil || len(n.Recv.List) == 0 {
				return n.Name.Name
			}
			receiver, _, _ := strings.Cut(strings.TrimLeft(s.text(n.Recv.List[0].Type), "*("), "[")
			return strings.TrimRight(receiver, ")") + "." + n.Name.Name
		case *ast.ValueSpec:
			return n.Names[0].Name
		}
	}
	return ""
}

// parent returns the nth ancestor of the site's node; 0 is its parent.
func (s site) parent(n int) ast.Node {
	if i := len(s.stack) - 2 - n; i >= 0 {
		return s.stack[i]
	}
	return nil
}

// isStatementOfList reports whether n is a statement that can be omitted, rather than a part
// of another.
func isStatementOfList(n, parent ast.Node) bool {
	s, ok := n.(ast.Stmt)
	if !ok {
		return false
	}
	switch p := parent.(type) {
	case *ast.BlockStmt:
		return true
	case *ast.CaseClause:
		return true
	case *ast.CommClause:
		return p.Comm != s
	}
	return false
}

// statement omits a statement. Conditions, cases and results have their own mutants.
func (s site) statement(n ast.Stmt) {
	switch n := n.(type) {
	case *ast.ExprStmt:
		if call, ok := n.X.(*ast.CallExpr); ok && (isBuiltin(s.info, call, "panic") || isIgnored(call)) {
			return
		}
	case *ast.AssignStmt:
		blank := func(e ast.Expr) bool { id, ok := e.(*ast.Ident); return ok && id.Name == "_" }
		if n.Tok == token.DEFINE || !slices.ContainsFunc(n.Lhs, func(e ast.Expr) bool { return !blank(e) }) {
			return
		}
	case *ast.BranchStmt:
		if n.Tok == token.FALLTHROUGH || n.Tok == token.GOTO {
			return
		}
	case *ast.ReturnStmt:
		if signature := s.signature(); len(n.Results) > 0 || signature == nil || signature.Results().Len() > 0 {
			return
		}
	case *ast.IncDecStmt, *ast.SendStmt, *ast.GoStmt, *ast.DeferStmt, *ast.RangeStmt:
	default:
		return
	}
	id := s.add(n, "removed")
	s.wrap(n, fmt.Sprintf("if mutateKeep(%d) { ", id), " }")
}

func isIgnored(call *ast.CallExpr) bool {
	f, ok := call.Fun.(*ast.SelectorExpr)
	return ok && slices.Contains(ignoredCalls, f.Sel.Name)
}

func isBuiltin(info *types.Info, call *ast.CallExpr, name string) bool {
	id, ok := ast.Unparen(call.Fun).(*ast.Ident)
	if !ok {
		return false
	}
	b, ok := info.Uses[id].(*types.Builtin)
	return ok && b.Name() == name
}

// signature returns the signature of the innermost function around the site.
func (s site) signature() *types.Signature {
	for _, n := range slices.Backward(s.stack) {
		switch n := n.(type) {
		case *ast.FuncLit:
			return s.info.TypeOf(n).(*types.Signature)
		case *ast.FuncDecl:
			return s.info.Defs[n.Name].Type().(*types.Signature)
		}
	}
	return nil
}

// expression mutates the operation of an expression.
func (s site) expression(e ast.Expr) {
	if s.isRootCondition(e) {
		s.condition(e, true)
	}
	if s.isConstant(e) {
		s.integer(e)
		return
	}
	switch e := e.(type) {
	case *ast.BinaryExpr:
		s.boundary(e)
		s.arithmetic(e)
	case *ast.CallExpr:
		s.timeBoundary(e)
	case *ast.CompositeLit:
		s.fields(e)
	}
}

func (s site) isConstant(e ast.Expr) bool {
	return s.info.Types[e].Value != nil
}

// isRootCondition reports whether e is a whole condition rather than a part of one.
func (s site) isRootCondition(e ast.Expr) bool {
	if !isBool(s.info.TypeOf(e)) {
		return false
	}
	parent := s.parent(0)
	switch p := parent.(type) {
	case *ast.ParenExpr:
		return false // the parentheses themselves were the root
	case *ast.BinaryExpr:
		if p.Op == token.LAND || p.Op == token.LOR {
			return false
		}
	case *ast.UnaryExpr:
		if p.Op == token.NOT {
			return false
		}
	case *ast.IfStmt, *ast.ForStmt, *ast.ReturnStmt:
		return true
	case *ast.CaseClause:
		of, ok := s.parent(2).(*ast.SwitchStmt)
		return ok && of.Tag == nil
	case *ast.KeyValueExpr:
		if p.Value == e {
			return true
		}
	}
	if s.isConstant(e) {
		return false
	}
	switch e := ast.Unparen(e).(type) {
	case *ast.BinaryExpr:
		return true
	case *ast.UnaryExpr:
		return e.Op == token.NOT
	}
	return false
}

func isBool(t types.Type) bool {
	b, ok := types.Unalias(t).(*types.Basic)
	return ok && b.Info()&types.IsBoolean != 0
}

// condition makes each operand of && and || true, and false. Tests that detect these detect
// other changes (the other operator, negation of the whole) too.
func (s site) condition(e ast.Expr, whole bool) {
	switch e := e.(type) {
	case *ast.ParenExpr:
		s.condition(e.X, whole)
		return
	case *ast.UnaryExpr:
		if e.Op == token.NOT {
			s.condition(e.X, whole)
			return
		}
	case *ast.BinaryExpr:
		if e.Op == token.LAND || e.Op == token.LOR {
			s.condition(e.X, false)
			s.condition(e.Y, false)
			return
		}
	}
	value := s.info.Types[e].Value
	toTrue, toFalse := none, none
	_, loop := s.parent(0).(*ast.ForStmt)
	// An endless loop gives no new information.
	if !(loop && whole) && !(value != nil && constant.BoolVal(value)) {
		toTrue = s.add(e, short(s.text(e))+" → true")
	}
	if value == nil || constant.BoolVal(value) {
		toFalse = s.add(e, short(s.text(e))+" → false")
	}
	s.wrap(e, fmt.Sprintf("mutateCond(%d, %d, ", toTrue, toFalse), ")")
}

// boundary moves equality to the other side of a comparison.
func (s site) boundary(e *ast.BinaryExpr) {
	names := map[token.Token]struct{ name, other string }{
		token.LSS: {"mutateLess", "<="},
		token.LEQ: {"mutateLessEqual", "<"},
		token.GTR: {"mutateGreater", ">="},
		token.GEQ: {"mutateGreaterEqual", ">"},
	}
	f, ok := names[e.Op]
	// A length is never negative: see condition.
	always := e.Op == token.GTR && s.isLength(e.X) && s.isZero(e.Y)
	if ok && !always && s.isBasic(e.X, types.IsOrdered) {
		s.call(e, f.name, f.other)
	}
}

func (s site) isBasic(e ast.Expr, info types.BasicInfo) bool {
	b, ok := s.info.TypeOf(e).Underlying().(*types.Basic)
	return ok && b.Info()&info != 0
}

func (s site) isLength(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	return ok && (isBuiltin(s.info, call, "len") || isBuiltin(s.info, call, "cap"))
}

// arithmetic replaces an operator with its inverse.
func (s site) arithmetic(e *ast.BinaryExpr) {
	names := map[token.Token]struct{ name, other string }{
		token.ADD: {"mutateAdd", "-"},
		token.SUB: {"mutateSub", "+"},
		token.MUL: {"mutateMul", "/"},
		token.QUO: {"mutateQuo", "*"},
	}
	if f, ok := names[e.Op]; ok && s.isBasic(e, types.IsInteger|types.IsFloat) {
		s.call(e, f.name, f.other)
	}
}

// call turns an operator into a call of a function that can apply another one.
func (s site) call(e *ast.BinaryExpr, name, other string) {
	id := s.add(e, fmt.Sprintf("%s: %s → %s", short(s.text(e)), e.Op, other))
	s.wrap(e, fmt.Sprintf("%s(%d, ", name, id), ")")
	op := s.offset(e.OpPos)
	s.edits.replace(op, op+len(e.Op.String()), ",")
}

// timeBoundary moves equality to the other side of a comparison of times.
func (s site) timeBoundary(call *ast.CallExpr) {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) != 1 || f.Sel.Name != "Before" && f.Sel.Name != "After" {
		return
	}
	for _, operand := range []ast.Expr{f.X, call.Args[0]} {
		if t := s.info.TypeOf(operand); t == nil || t.String() != "time.Time" {
			return
		}
	}
	id := s.add(call, fmt.Sprintf("%s: or equal", short(s.text(call))))
	s.wrap(call, fmt.Sprintf("mutate%s(%d, ", f.Sel.Name, id), "")
	s.edits.replace(s.offset(f.X.End()), s.offset(call.Lparen)+1, ",")
}

// integer adds one to a literal.
func (s site) integer(e ast.Expr) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.INT {
		return
	}
	switch p := s.parent(0).(type) {
	case ast.Expr:
		if s.isConstant(p) {
			return // part of a constant
		}
		switch p := p.(type) {
		case *ast.ArrayType:
			return
		case *ast.KeyValueExpr:
			if p.Key == e {
				return
			}
		case *ast.CallExpr:
			// No test notices a different capacity, except a channel's.
			if isBuiltin(s.info, p, "make") && (len(p.Args) == 3 && p.Args[2] == e || len(p.Args) == 2 && isMap(s.info.TypeOf(p))) {
				return
			}
		}
	case *ast.CaseClause:
		return // see tagSwitch
	}
	t, ok := types.Unalias(s.info.TypeOf(e)).(*types.Basic)
	if !ok || t.Info()&types.IsInteger == 0 || t.Info()&types.IsUntyped != 0 {
		return
	}
	id := s.add(e, lit.Value+" → one more")
	s.wrap(e, fmt.Sprintf("mutateMore[%s](%d, ", t.Name(), id), ")")
}

func isMap(t types.Type) bool {
	_, ok := t.Underlying().(*types.Map)
	return ok
}

// fields makes the fields of a struct zero, one by one.
func (s site) fields(lit *ast.CompositeLit) {
	t := s.info.TypeOf(lit).Underlying()
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem().Underlying()
	}
	structure, ok := t.(*types.Struct)
	if !ok {
		return
	}
	for i, element := range lit.Elts {
		change, value, field := "", element, structure.Field(i)
		if pair, ok := element.(*ast.KeyValueExpr); ok {
			name := pair.Key.(*ast.Ident)
			change, value, field = name.Name+": ", pair.Value, s.info.Uses[name].(*types.Var)
		}
		s.zero(value, field.Type(), change)
	}
}

// results returns zero values, one by one.
func (s site) results(n *ast.ReturnStmt) {
	signature := s.signature()
	if signature == nil || signature.Results().Len() != len(n.Results) {
		return
	}
	for i, e := range n.Results {
		s.zero(e, signature.Results().At(i).Type(), "")
	}
}

// zero replaces a value of type t with the zero value. For a bool see condition, for a literal
// integer see integer.
func (s site) zero(e ast.Expr, t types.Type, change string) {
	if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.INT || isBool(t) || s.isZero(e) {
		return
	}
	name := "mutateZero"
	if s.isConstant(e) || !types.Identical(s.info.TypeOf(e), t) {
		// The type argument cannot be inferred.
		text, ok := s.typeText(t)
		if !ok {
			return
		}
		name += "[" + text + "]"
	}
	id := s.add(e, change+short(s.text(e))+" → zero")
	s.wrap(e, fmt.Sprintf("%s(%d, ", name, id), ")")
}

// isZero reports whether an expression is obviously a zero value.
func (s site) isZero(e ast.Expr) bool {
	tv := s.info.Types[e]
	if tv.IsNil() {
		return true
	}
	if tv.Value != nil {
		switch tv.Value.Kind() {
		case constant.Bool:
			return !constant.BoolVal(tv.Value)
		case constant.String:
			return constant.StringVal(tv.Value) == ""
		default:
			return constant.Sign(tv.Value) == 0
		}
	}
	if lit, ok := e.(*ast.CompositeLit); ok && len(lit.Elts) == 0 {
		switch tv.Type.Underlying().(type) {
		case *types.Struct, *types.Array:
			return true
		}
	}
	return false
}

// typeText returns the text of a type at the site. ok is false if one of its names has another
// meaning there.
func (s site) typeText(t types.Type) (string, bool) {
	pos := s.stack[len(s.stack)-1].Pos()
	scope := s.info.Scopes[s.file]
	if inner := scope.Innermost(pos); inner != nil {
		scope = inner
	}
	ok := true
	text := types.TypeString(t, func(p *types.Package) string {
		for _, spec := range s.file.Imports {
			imported := s.info.PkgNameOf(spec)
			if imported != nil && imported.Imported() == p {
				_, found := scope.LookupParent(imported.Name(), pos)
				ok = ok && found == imported
				return imported.Name()
			}
		}
		ok = ok && p == s.pkg
		return ""
	})
	return text, ok
}

// tagSwitch disables cases, so that their values fall to the default.
func (s site) tagSwitch(n *ast.SwitchStmt) {
	if n.Tag == nil || s.isConstant(n.Tag) {
		return
	}
	var name string
	switch {
	case s.isBasic(n.Tag, types.IsInteger):
		name = "mutateDropInteger"
	case s.isBasic(n.Tag, types.IsString):
		name = "mutateDropString"
	default:
		return
	}
	for _, clause := range n.Body.List {
		for _, e := range clause.(*ast.CaseClause).List {
			if s.isConstant(e) {
				id := s.add(e, "case "+short(s.text(e))+" dropped")
				s.wrap(n.Tag, fmt.Sprintf("%s(%d, ", name, id), ", "+s.text(e)+")")
			}
		}
	}
}

// communication disables a case of a select.
func (s site) communication(n *ast.CommClause) {
	var channel ast.Expr
	receive := func(e ast.Expr) {
		if u, ok := ast.Unparen(e).(*ast.UnaryExpr); ok && u.Op == token.ARROW {
			channel = u.X
		}
	}
	switch c := n.Comm.(type) {
	case *ast.SendStmt:
		channel = c.Chan
	case *ast.ExprStmt:
		receive(c.X)
	case *ast.AssignStmt:
		receive(c.Rhs[0])
	}
	if channel == nil {
		return
	}
	id := s.add(n, "never")
	s.wrap(channel, "mutateZero("+strconv.Itoa(id)+", ", ")")
}

// helpers is the code that mutants call, for one package.
const helpers = `package %s

import (
	"cmp"
	"os"
	"strconv"
	"time"
)

var mutateActive, _ = strconv.Atoi(os.Getenv(%q))

func mutateKeep(id int) bool { return id != mutateActive }

func mutateCond(toTrue, toFalse int, v bool) bool {
	return (v || mutateActive == toTrue) && mutateActive != toFalse
}

func mutateZero[T any](id int, v T) T {
	if id == mutateActive {
		return *new(T)
	}
	return v
}

func mutateLess[T cmp.Ordered](id int, a, b T) bool         { return a < b || id == mutateActive && a == b }
func mutateLessEqual[T cmp.Ordered](id int, a, b T) bool    { return a < b || id != mutateActive && a == b }
func mutateGreater[T cmp.Ordered](id int, a, b T) bool      { return a > b || id == mutateActive && a == b }
func mutateGreaterEqual[T cmp.Ordered](id int, a, b T) bool { return a > b || id != mutateActive && a == b }

func mutateBefore(id int, a, b time.Time) bool { return a.Before(b) || id == mutateActive && a.Equal(b) }
func mutateAfter(id int, a, b time.Time) bool  { return a.After(b) || id == mutateActive && a.Equal(b) }

type mutateInteger interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr
}

type mutateNumber interface {
	mutateInteger | ~float32 | ~float64
}

func mutateAdd[T mutateNumber](id int, a, b T) T {
	if id == mutateActive {
		return a - b
	}
	return a + b
}

func mutateSub[T mutateNumber](id int, a, b T) T {
	if id == mutateActive {
		return a + b
	}
	return a - b
}

func mutateMul[T mutateNumber](id int, a, b T) T {
	if id == mutateActive {
		return a / b
	}
	return a * b
}

func mutateQuo[T mutateNumber](id int, a, b T) T {
	if id == mutateActive {
		return a * b
	}
	return a / b
}

func mutateMore[T mutateInteger](id int, n T) T {
	if id == mutateActive {
		n++
	}
	return n
}

// What is switched on becomes a value that no case has.
func mutateDropInteger[T mutateInteger](id int, v, dropped T) T {
	if id == mutateActive && v == dropped {
		return v + 100
	}
	return v
}

func mutateDropString[T ~string](id int, v, dropped T) T {
	if id == mutateActive && v == dropped {
		return v + "\x00"
	}
	return v
}
`
