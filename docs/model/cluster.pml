/*
 * Several servers, two machines, and one exclusive volume of the environment with a filesystem
 * on it. Servers lose the lease while they call the provider, machines lose power or their
 * connection, users move the storage and fence machines, and the state is restored from a backup.
 * README.md says which code each part stands for, and lists the switches; `run` checks the model
 * with all of them.
 *
 * As in lifecycle.pml, every step is atomic, and a process has no program counter: all its memory
 * is in the variables. What one worker does with the volume is only sketched here: the details
 * are in lifecycle.pml.
 */

/* ---- the size of the model ---- */

/* The number of terms: how often a server becomes the leader. */
#ifndef TERMS
#define TERMS 2
#endif
/* The greatest numbers of the user's moves, of machines that lose power, of restores, and of
   agents that are replaced by another enrolment. */
#ifndef MOVES
#define MOVES 2
#endif
#ifndef POWER
#define POWER 1
#endif
#ifndef RESTORES
#define RESTORES 0
#endif
#ifndef ENROLMENTS
#define ENROLMENTS 0
#endif

/* ONE_FAILS: only machine 0 loses its power or its connection. */
#ifdef ONE_FAILS
#define mayFail(n)	(!calm && n == 0)
#else
#define mayFail(n)	(!calm)
#endif

/* What protects against the calls of a leader that was replaced: the provider compares the term
   (COMPARES), it lists attachments (LISTS), or neither. If it does not compare the term, no call
   takes effect after its deadline, unless LATE is defined. */
#if defined(COMPARES) && defined(LISTS)
#error "choose one"
#endif

/* ---- the state ---- */

#define GONE	0
#define ALIVE	1
#define DYING	2

#define NOTES	(2 * TERMS - 2)

/* Machines are 0 and 1; where a machine is optional, 0 means no machine, and 1 and 2 mean these. */
typedef Record {
	unsigned at : 2;	/* the machine to which the volume is attached, if any */
	bit dying, info;	/* the attachment is being detached; it is recorded as attached */
	unsigned mount : 2;	/* the life of the filesystem's attachment */
	unsigned moveTo : 2;	/* the machine to which the storage is to move, if any */
	bit connected[2];	/* presence */
	bit fenced[2];
	/* The machine still has the boot ID that is recorded in its fence, or in its session. */
	bit sameFence[2], sameSession[2];
	/* The attempts to attach that are noted and not settled: that of term k on machine n at
	   index 2*k + n. That of the last term is not needed. An attempt to detach is noted as long
	   as its call is under way. */
	bit attaching[NOTES];
}
Record s;
#if RESTORES > 0
Record saved;
bit hasSaved;
#ifdef BREAK_NOTICE
bit restored, noticed;
#endif
unsigned savedRevision : 3;
#endif
bit accepted = 1;	/* it was not restored, or a user has accepted that */

/* ---- the lease ---- */

unsigned leader : 2;	/* the term that has the lease, counted from 1; 0: nobody has it */
unsigned began : 2;	/* the number of terms so far */
unsigned revision : 3;	/* that of the store */
bit fresh;		/* the leader has attached the volume itself */

#define NEVER		0
#define IDLE		1
#define CALLING		2
#define RETURNED	3
#define EXPIRED		4	/* the deadline of the call has passed, and nobody waits for its end */
#define ENDED		5

#define ATTACH	0
#define DETACH	1

/* What the server does in a term, even after it has lost the lease. */
typedef Term {
	unsigned number : 3;	/* the revision at which it got the lease */
	unsigned phase : 3;
	bit op, on;
	bit settles;		/* the call began after the deadlines of all earlier ones on the machine */
}
Term t[TERMS];

/* ---- what exists ---- */

bit attached[2];	/* at the provider */
bit mounted[2];
unsigned seen : 3;	/* the greatest term that the provider has seen */

typedef Machine {
	bit on;
	bit session;	/* its agent is connected to a server, in the current session */
	bit report;	/* a request of the current session is under way: it is unmounted */
#ifdef BREAK_SESSION
	bit late;	/* so is one of an earlier session; without the switch, it has no effect */
#endif
	bit out;	/* its agent was refused because of a fence, and has shut the filesystem down */
	/* It was fenced although it was not off, and its agent does not know yet. */
	bit mistaken;
}
Machine m[2];

bit calm;
byte moves = MOVES, power = POWER, restores = RESTORES, enrolments = ENROLMENTS;
unsigned wanted : 2 = 1;	/* where the user wants the storage */

#define say(text)	printf(text); printf("\n")
#define say1(text, n)	printf(text, n); printf("\n")

/* ---- properties that hold always ---- */

#define usedOn(n)	(mounted[n] && !m[n].mistaken)

inline check() {
	assert(!(attached[0] && attached[1]));				/* attached to one machine at a time */
	assert(!(usedOn(0) && attached[1]) && !(usedOn(1) && attached[0]))	/* mounted where it is attached */
}

/* ---- state/life.go, state/move.go ---- */

inline settle() {
	if :: s.at != 0 && s.mount == GONE -> s.dying = 1 :: else fi;
	if :: s.moveTo != 0 && s.fenced[s.moveTo - 1] -> s.moveTo = 0; wanted = 0 :: else fi;
#ifdef BREAK_MOVE
	if :: s.moveTo != 0 && s.mount == GONE ->
#else
	if :: s.moveTo != 0 && s.at == 0 ->
#endif
		s.at = s.moveTo; s.dying = 0; s.info = 0; s.mount = ALIVE; s.moveTo = 0; fresh = 0
	:: else
	fi
}

/* ---- users: state/move.go, state/fence.go ---- */

#define mayMove(to) \
	(!s.fenced[to] && s.moveTo != to + 1 && \
	 (s.at == 0 || s.at == to + 1 && s.mount != ALIVE || s.at == 2 - to && (s.fenced[1 - to] || s.connected[1 - to])))

inline move(to) {
	s.moveTo = to + 1; wanted = to + 1; moves--;
	if :: s.at == 2 - to && s.mount == ALIVE -> s.mount = DYING :: else fi;
	settle()
}

/* endSession: what was requested in the session arrives late from here on. */
inline endSession(n) {
#ifdef BREAK_SESSION
	if :: m[n].report -> m[n].late = 1 :: else fi;
#endif
	m[n].report = 0; m[n].session = 0
}

#ifdef BREAK_FENCE_ALIVE
#define mayFence(n)	(!s.fenced[n])
#else
#define mayFence(n)	(!s.fenced[n] && !s.connected[n])
#endif

inline fence(n) {
	s.fenced[n] = 1; s.sameFence[n] = s.sameSession[n];
	/* The user is mistaken if the machine has the filesystem mounted. One that is connected is
	   not fenced by mistake: that has to be refused. */
	m[n].mistaken = (mounted[n] && !m[n].session);
#ifdef BREAK_FENCE_SETTLES
	s.attaching[n] = 0;
#endif
	endSession(n);
	say1("user: fence machine %d", n)
}

#define fenceLeft(n)	(s.fenced[n] && s.at == n + 1 && (s.mount != GONE || !s.dying))

inline finishFence(n) {
	s.mount = GONE;
	if :: s.moveTo == 0 -> wanted = 0 :: else fi;
	settle();
	say1("state: the storage leaves the fenced machine %d", n)
}

proctype user() {
end:	do
	:: atomic { !calm && moves > 0 && mayMove(0) -> move(0); say("user: move to machine 0") }
	:: atomic { !calm && moves > 0 && mayMove(1) -> move(1); say("user: move to machine 1") }
	:: atomic { !calm && mayFence(0) -> fence(0) }
	:: atomic { !calm && mayFence(1) -> fence(1) }
	:: atomic { fenceLeft(0) -> finishFence(0) }
	:: atomic { fenceLeft(1) -> finishFence(1) }
	:: atomic { !calm -> calm = 1; say("nothing disturbs from here on") }
	od
}

/* ---- machines and their agents: apiserver/admission, state/session.go, api ---- */

inline powerOff(n) {
	m[n].on = 0; mounted[n] = 0; m[n].out = 0; m[n].mistaken = 0;
	m[n].session = 0;	/* what is under way may still arrive */
	s.sameFence[n] = 0; s.sameSession[n] = 0;
#if RESTORES > 0
	saved.sameFence[n] = 0; saved.sameSession[n] = 0;
#endif
	say1("machine %d: OFF", n)
}

/* OpenSession, and what the agent does if it is refused. */
inline openSession(n) {
	endSession(n);
	if
#ifndef BREAK_SAME_BOOT
	:: s.fenced[n] && s.sameFence[n] ->
		m[n].out = 1; mounted[n] = 0; m[n].mistaken = 0;
		say1("machine %d: refused, shuts its filesystem down", n)
#endif
	:: else ->
		s.fenced[n] = 0; s.sameFence[n] = 0;
		m[n].session = 1; s.connected[n] = 1; s.sameSession[n] = 1;
		/* A restored state does not know of fences since the backup: see README.md. */
		if :: accepted -> m[n].mistaken = 0 :: else fi;
		say1("machine %d: opens a session", n);
		check()
	fi
}

inline unmounted(n) {
	if
	:: s.at == n + 1 && s.mount == DYING -> s.mount = GONE; settle(); say1("state: unmounted from machine %d", n)
	:: else
	fi
}

#ifdef BREAK_MACHINE_ACCEPTED
#define mayUse	(true)
#else
#define mayUse	(accepted)
#endif

proctype machine(bit n) {
end:	do
	:: atomic { mayFail(n) && power > 0 && m[n].on -> powerOff(n); power-- }
	:: atomic { m[n].out -> powerOff(n) }		/* as the agent's message asks */
	:: atomic { !m[n].on -> m[n].on = 1; say1("machine %d: starts", n) }
	:: atomic { mayFail(n) && m[n].session -> m[n].session = 0; say1("machine %d: loses its connection", n) }
	:: atomic { s.connected[n] && !m[n].session ->
		s.connected[n] = 0; say1("machine %d: counts as absent", n) }
	:: atomic { m[n].on && !m[n].out && !m[n].session -> openSession(n) }
#if ENROLMENTS > 0
	:: atomic { !calm && enrolments > 0 ->
		enrolments--; endSession(n);
#ifdef BREAK_ENROLMENT
		s.sameSession[n] = 0;
#endif
		say1("user: another agent takes the place of that of machine %d", n) }
#endif

	/* The agent mounts and unmounts as the state says. */
	:: atomic { m[n].session && mayUse && s.at == n + 1 && s.mount == ALIVE && s.info && !s.dying &&
			attached[n] && !mounted[n] ->
		mounted[n] = 1; say1("machine %d: mounts", n); check() }
	:: atomic { m[n].session && mayUse && s.at == n + 1 && s.mount == DYING && !m[n].report ->
		/* Unmounting writes: never to what another machine may use. */
		assert(!(mounted[n] && attached[1 - n]));
		mounted[n] = 0; m[n].report = 1; say1("machine %d: unmounts", n) }
	:: atomic { m[n].report -> m[n].report = 0; unmounted(n) }
#ifdef BREAK_SESSION
	:: atomic { m[n].late -> m[n].late = 0; unmounted(n) }
#endif
	od
}

/* ---- leaders: cmd/stowage/internal/server/leader.go, and the environment's worker ---- */

#define idx(k, n)	(2 * (k) + (n))
#define inCall(k)	(t[k].phase == CALLING)

/* Whether an earlier term has an attempt on the machine that is not settled. open: whether its
   deadline has not passed. Earlier terms of term k are those below it. */
#if TERMS > 2
#define attachNoted(k, n)	(k > 0 && s.attaching[idx(0, n)] || k > 1 && s.attaching[idx(1, n)])
#else
#define attachNoted(k, n)	(k > 0 && s.attaching[idx(0, n)])
#endif
#ifdef BREAK_SETTLE_EARLY
#define attachOpen(k, n)	(false)
#else
#if TERMS > 2
#define attachOpen(k, n) \
	(k > 0 && s.attaching[idx(0, n)] && inCall(0) || k > 1 && s.attaching[idx(1, n)] && inCall(1))
#else
#define attachOpen(k, n)	(k > 0 && s.attaching[idx(0, n)] && inCall(0))
#endif
#endif
#define detaches(k, n)	(inCall(k) && t[k].op == DETACH && t[k].on == n)
#ifdef BREAK_DETACH_NOTED
#define detachOpen(k, n)	(false)
#else
#if TERMS > 2
#define detachOpen(k, n)	(k > 0 && detaches(0, n) || k > 1 && detaches(1, n))
#else
#define detachOpen(k, n)	(k > 0 && detaches(0, n))
#endif
#endif

#ifdef BREAK_ACCEPTED
#define mayCall	(true)
#else
#define mayCall	(accepted)
#endif
#ifdef BREAK_TERM
#define leads(k)	(t[k].phase != NEVER)
#else
#define leads(k)	(leader == k + 1)
#endif

/* mayAttach: nothing that an earlier leader began can attach the volume to the other machine, or
   detach it from this one, any more. */
#ifdef BREAK_UNSETTLED
#define mayAttach(k, n)	(true)
#else
#ifdef COMPARES
#define mayAttach(k, n)	(true)
#else
#ifdef LISTS
#define mayAttach(k, n)	(!attachNoted(k, 0) && !attachNoted(k, 1) && !detachOpen(k, n) && !attached[1 - (n)])
#else
#define mayAttach(k, n)	(!attachNoted(k, 1 - (n)) && !detachOpen(k, n))
#endif
#endif
#endif

/* What a listing shows is not attached again. */
#ifdef LISTS
#define listed(n)	(attached[n])
#else
#define listed(n)	(false)
#endif

/* Something is, or may be, attached to a machine where the state has nothing. */
#ifdef LISTS
#define stray(k, n)	(s.at != n + 1 && !attachNoted(k, n) && attached[n])
#else
#ifdef COMPARES
#define stray(k, n)	(false)
#else
#define stray(k, n)	(s.at != n + 1 && attachNoted(k, n) && !attachOpen(k, n))
#endif
#endif

inline clearNotes(k, n) {
	if :: k > 0 -> s.attaching[idx(0, n)] = 0 :: else fi;
#if TERMS > 2
	if :: k > 1 -> s.attaching[idx(1, n)] = 0 :: else fi
#endif
}

inline note(k, n, value) {
	if :: k + 1 < TERMS -> s.attaching[idx(k, n)] = value :: else fi
}

inline begin(k, op_, n) {
	t[k].phase = CALLING; t[k].op = op_; t[k].on = n;
#ifndef COMPARES
	if
	:: op_ == ATTACH ->
#ifdef BREAK_OVERWRITE
		clearNotes(k, n);
#endif
		note(k, n, 1)
	:: else ->
#ifdef BREAK_DETACH_EARLY
		t[k].settles = 1
#else
		t[k].settles = !attachOpen(k, n)
#endif
	fi
#endif
}

/* A leader that has lost the lease begins nothing, and its reports are refused. */
inline finish(k) {
	t[k].op = 0; t[k].on = 0; t[k].settles = 0;
	if :: leads(k) -> t[k].phase = IDLE :: else -> t[k].phase = ENDED fi
}

inline loseLease(k) {
	leader = 0; fresh = 0;
	if :: t[k].phase != CALLING && !leads(k) -> finish(k) :: else fi
}

/* The provider's part of a call. */
inline carryOut(k) {
	if
#ifndef BREAK_COMPARE
#ifdef COMPARES
	:: t[k].number < seen ->
		say1("provider: refuses a call of leader %d", k + 1); finish(k)
#endif
#endif
	:: else ->
		seen = t[k].number;
		if
		:: t[k].op == ATTACH ->
			say1("provider: attached to machine %d", t[k].on);
			attached[t[k].on] = 1; check()
		:: else ->
			say1("provider: detached from machine %d", t[k].on);
			assert(!usedOn(t[k].on));	/* not while it is mounted */
			attached[t[k].on] = 0
		fi;
		if :: t[k].phase == CALLING && leads(k) -> t[k].phase = RETURNED :: else -> finish(k) fi
	fi
}

/* What the leader of a term reports. */
inline reported(k, n) {
	if
	:: t[k].op == ATTACH ->
		note(k, n, 0);
		if :: s.at == n + 1 && !s.dying -> s.info = 1; fresh = 1 :: else fi;
		/* What is attached may have to be detached later, in another term. */
	:: else ->
#ifndef COMPARES
		if :: t[k].settles -> clearNotes(k, n) :: else fi;
		t[k].settles = 0;
#endif
		if :: s.at == n + 1 && s.dying -> s.at = 0; s.dying = 0; s.info = 0; settle() :: else fi
	fi;
	say1("state: has the result of leader %d", k + 1)
}

proctype server(byte k) {
end:	do
	:: atomic { leader == 0 && began == k ->
		leader = k + 1; began++; revision++; t[k].number = revision; t[k].phase = IDLE; fresh = 0;
		say1("leader %d: begins", k + 1) }
	/* A leader whose lease has ended may be paused, and its call may still be made. */
	:: atomic { !calm && leader == k + 1 && k + 1 < TERMS ->
		loseLease(k); say1("leader %d: LOSES the lease", k + 1) }

	:: atomic { t[k].phase == IDLE && leads(k) && mayCall && s.at != 0 && !s.dying && !fresh && mayAttach(k, s.at - 1) &&
			!listed(s.at - 1) ->
		begin(k, ATTACH, s.at - 1); say1("leader %d: calls attach", k + 1) }
#ifdef LISTS
	:: atomic { t[k].phase == IDLE && leads(k) && mayCall && s.at != 0 && !s.dying && !fresh && mayAttach(k, s.at - 1) &&
			listed(s.at - 1) ->
		s.info = 1; fresh = 1; say1("leader %d: finds it attached", k + 1) }
	/* A new leader lists what is attached, and settles the attempts of earlier terms by that. */
	:: atomic { t[k].phase == IDLE && leads(k) && mayCall && (attachNoted(k, 0) || attachNoted(k, 1)) &&
			!attachOpen(k, 0) && !attachOpen(k, 1) ->
		clearNotes(k, 0); clearNotes(k, 1); say1("leader %d: lists, and settles what is noted", k + 1) }
#endif
	:: atomic { t[k].phase == IDLE && leads(k) && mayCall && s.at != 0 && s.dying ->
		begin(k, DETACH, s.at - 1); say1("leader %d: calls detach", k + 1) }
	:: atomic { t[k].phase == IDLE && leads(k) && mayCall && stray(k, 0) ->
		begin(k, DETACH, 0); say1("leader %d: calls detach of machine 0, where nothing is wanted", k + 1) }
	:: atomic { t[k].phase == IDLE && leads(k) && mayCall && stray(k, 1) ->
		begin(k, DETACH, 1); say1("leader %d: calls detach of machine 1, where nothing is wanted", k + 1) }

	:: atomic { t[k].phase == CALLING -> carryOut(k) }
#ifndef COMPARES
	:: atomic { t[k].phase == CALLING && leader != k + 1 ->
		say1("leader %d: the deadline of its call has passed", k + 1);
#ifdef LATE
		t[k].phase = EXPIRED
#else
		finish(k)
#endif
		}
#ifdef LATE
	:: atomic { t[k].phase == EXPIRED -> carryOut(k) }
#endif
#endif
	:: atomic { t[k].phase == RETURNED -> reported(k, t[k].on); finish(k) }
	od
}

/* ---- state/identity.go, state/marks.go: a restored state ---- */

#if RESTORES > 0

inline copyMachine(to, from, n) {
	to.connected[n] = from.connected[n]; to.fenced[n] = from.fenced[n];
	to.sameFence[n] = from.sameFence[n]; to.sameSession[n] = from.sameSession[n];
	to.attaching[n] = from.attaching[n];
#if TERMS > 2
	to.attaching[2 + n] = from.attaching[2 + n]
#endif
}

inline copy(to, from) {
	to.at = from.at; to.dying = from.dying; to.info = from.info; to.mount = from.mount; to.moveTo = from.moveTo;
	copyMachine(to, from, 0); copyMachine(to, from, 1)
}

/* The backup is not needed any more: all states without it are equal. */
inline forgetMachine(n) {
	saved.connected[n] = 0; saved.fenced[n] = 0; saved.sameFence[n] = 0; saved.sameSession[n] = 0;
	saved.attaching[n] = 0;
#if TERMS > 2
	saved.attaching[2 + n] = 0
#endif
}

inline forgetSaved() {
	saved.at = 0; saved.dying = 0; saved.info = 0; saved.mount = 0; saved.moveTo = 0; savedRevision = 0; hasSaved = 0;
	forgetMachine(0); forgetMachine(1)
}

/* No call of an earlier leader is still under way. */
#ifdef BREAK_QUIET
#define quiet	(true)
#else
#if TERMS > 2
#define quiet	(!(inCall(0) && leader != 1) && !(inCall(1) && leader != 2))
#else
#define quiet	(!(inCall(0) && leader != 1))
#endif
#endif

/* A user makes sure that storage is in use where the state says, and nowhere else. */
inline correct(n) {
	if :: s.at != n + 1 -> attached[n] = 0 :: else fi;
	if :: !attached[n] -> mounted[n] = 0 :: else fi;
	if :: !s.fenced[n] -> m[n].mistaken = 0 :: else fi
}

proctype backups() {
end:	do
	:: atomic { !calm && restores > 0 && !hasSaved ->
		copy(saved, s); hasSaved = 1;
#ifdef BREAK_REVISION
		savedRevision = revision; revision++;	/* what is written afterwards raises it */
#endif
		say("user: BACKUP") }
	:: atomic { !calm && restores > 0 && hasSaved && began < TERMS ->
		restores--;
		copy(s, saved);
#ifdef BREAK_REVISION
		revision = savedRevision;
#endif
		forgetSaved();
#ifdef BREAK_NOTICE
		restored = 1;
#else
		accepted = 0;
#endif
		/* The filesystem may have been mounted since the backup. */
#ifndef BREAK_ASSUME_MOUNTED
		if :: s.at != 0 && s.mount == GONE -> s.mount = DYING; s.dying = 0 :: else fi;
#endif
#ifndef BREAK_BOOT
		/* A boot ID of before the restore is not that of the machine's last session. */
		s.sameSession[0] = m[0].on; s.sameSession[1] = m[1].on;
#endif
#ifndef BREAK_FENCE_RESTORED
		s.fenced[0] = 0; s.sameFence[0] = 0; s.fenced[1] = 0; s.sameFence[1] = 0;
#endif
		if
		:: s.moveTo != 0 -> wanted = s.moveTo
		:: s.moveTo == 0 && s.mount == ALIVE -> wanted = s.at
		:: else -> wanted = 0
		fi;
		/* The servers start again. */
		if
		:: leader == 1 -> loseLease(0)
#if TERMS > 2
		:: leader == 2 -> loseLease(1)
#endif
		:: else
		fi;
		endSession(0); endSession(1);
		settle();
		say("user: RESTORE") }
#ifdef BREAK_NOTICE
	:: atomic { restored && !noticed -> noticed = 1; accepted = 0; say("server: notices the restore") }
#endif
	:: atomic { !accepted && quiet -> accepted = 1; correct(0); correct(1); say("user: accepts the restored state") }
	od
}
#endif

init {
	atomic {
		s.at = 1; s.info = 1; s.mount = ALIVE;
		s.connected[0] = 1; s.connected[1] = 1; s.sameSession[0] = 1; s.sameSession[1] = 1;
		attached[0] = 1; mounted[0] = 1;
		m[0].on = 1; m[0].session = 1;
		m[1].on = 1; m[1].session = 1;
		run user();
		run machine(0); run machine(1);
		byte k = 0;
		do
		:: k < TERMS -> run server(k); k++
		:: else -> break
		od;
#if RESTORES > 0
		run backups()
#endif
	}
}

/* ---- liveness: once nothing disturbs, the storage ends where it is wanted ---- */

#define settled		(s.moveTo == 0 && accepted && s.at == wanted)
#define down		(s.at == 0 && !attached[0] && !attached[1] && !mounted[0] && !mounted[1])
#define up(n)		(s.at == n + 1 && !s.dying && s.info && s.mount == ALIVE && attached[n] && mounted[n] && \
				!attached[1 - n] && !mounted[1 - n])
#define asWanted	(settled && (down || up(0) || up(1)))

#ifdef LIVE
never {
	do
	:: true
	:: calm && !asWanted -> break
	od;
accept:
	do
	:: !asWanted
	od
}
#endif
