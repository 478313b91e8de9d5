/*
 * The life cycle of storage instances, in which their user, the state, the environment's
 * worker, the machines' workers and the provider take part. README.md says which code each
 * part stands for, and lists the switches; `run` checks the model with all of them.
 *
 * Every step is atomic. A process is a set of steps that it may take, and has no program
 * counter: all its memory is in the variables. So spin tries all interleavings of the steps.
 */

/* ---- the size of the model ---- */

/* There are N instances, one or two. The switches say whether the volume is made by a provider
   of the environment (or else of machine 0), whether its attachment has a plan, and whether
   there is a filesystem on it. */
#ifndef N
#define N 1
#endif
#ifndef ENVIRON0
#define ENVIRON0 1
#endif
#ifndef PLAN0
#define PLAN0 1
#endif
#ifndef FS0
#define FS0 0
#endif
/* The volume of the second instance, if any, is made by a provider of machine 0. */
#ifndef FS1
#define FS1 0
#endif
#define environs(i)	(i == 0 && ENVIRON0)
#define planned(i)	(i == 0 && PLAN0)
#define hasFS(i)	((i == 0 && FS0) || (i == 1 && FS1))

/* NO_ATTEMPTS_CREATE, NO_ATTEMPTS_ATTACH: the worker does not note in the state that it is about
   to make, or to attach, something. NO_ATTEMPTS: the state has no attempts at all. */
#ifdef NO_ATTEMPTS
#define NO_ATTEMPTS_CREATE
#define NO_ATTEMPTS_ATTACH
#endif

/* The greatest numbers of crashes and of user's changes; 255: no limit. */
#ifndef CRASHES
#define CRASHES 255
#endif
#ifndef CHANGES
#define CHANGES 255
#endif

/* ---- state/life.go, state/instance.go: the record of an instance ---- */

#define GONE	0
#define ALIVE	1
#define DYING	2
#define DEAD	3

typedef Instance {
	unsigned life : 2;
	/* the volume: its life, whether it is provisioned, whether an attempt is noted */
	unsigned v : 2; bit vInfo; bit vTried;
	/* its attachment: life, machine, whether attached, whether an attempt is noted; its plan */
	unsigned a : 2; bit aOn; bit aInfo; bit aTried; unsigned p : 2;
	/* the filesystem on the volume, and the filesystem's attachment */
	unsigned f : 2; bit fInfo; bit fTried;
	unsigned m : 2; bit mInfo; bit mTried;
}
Instance s[N];

/* The machines that have an instance ID. */
bit provisioned[2];

/* ---- what exists at the provider and on the machines ---- */

typedef Reality {
	unsigned made : 2;	/* the number of volumes */
	bit attached[2];
	bit session[2];		/* the plan has been carried out */
	bit formatted, mounted;
	bit seen;		/* the disk manager has published the device on machine 0 */
	/* The calls under way, for the volume and for the filesystem. */
	unsigned calls : 2; unsigned fcalls : 2;
	/* The volume's creation is about to begin or has begun, and it is not known to have made
	   nothing. */
	bit begun;
}
Reality r[N];

#define attachedAnywhere(i)	(r[i].attached[0] || r[i].attached[1])
#define visible(i)	(r[i].attached[0] && (!planned(i) || r[i].session[0]))

/* ---- worker/storageprovisioner/internal/plan/entity.go: what a worker knows ---- */

#define IDLE		0
#define RUNNING		1
#define PUBLISHING	2
#define PLANNED		3	/* publishing: the plan is recorded, the attachment not yet */
#define NOTING		4	/* the attempt must be noted in the state before the call */

#define NONE	0
#define REMOVE	1
#define DESTROY	2
#define CREATE	3
#define DETACH	4
#define ATTACH	5

typedef Entity {
	unsigned life : 2;
	bit unread, stale, rec;
	bit args;		/* a volume has the parameters to create it; an attachment has the volume's ID */
	bit on;			/* the machine */
	unsigned phase : 3; unsigned op : 3;
	bit attached, held;
	bit uncertain, unresolved;
	bit unmade;		/* the attempt made nothing, and its note in the state is to be removed */
}
Entity V[N], A[N], P[N], F[N], M[N];

#define busy(e)		(e.phase != IDLE)
#define underway(e)	(busy(e) || e.unresolved)
#define inHands(e)	(e.phase == RUNNING || e.phase == NOTING)

/* The block device of the filesystem's volume, as the worker of machine 0 knows it. */
bit known[N], sought[N];

/* Set once users and crashes have ended. */
bit calm;
byte crashes = CRASHES, changes = CHANGES;

/* The text that a trace shows for a step. */
#define say(text)	printf(text); printf("\n")

/* Temporary values within a step, not part of the model's state. */
hidden byte oldV, oldA, oldP, oldF, oldM;

/* ---- the rules of life ---- */

/* beginDetach for the volume: its plan is undone first. */
inline beginDetachV(i) {
	if
	:: s[i].a == ALIVE && s[i].p == GONE -> s[i].a = DYING
#ifdef BREAK_PLAN_FIRST
	:: s[i].a == ALIVE && s[i].p == ALIVE -> s[i].a = DYING
#else
	:: s[i].a == ALIVE && s[i].p == ALIVE -> s[i].p = DYING
#endif
	:: else
	fi
}

/* beingMade and mayMake: a volume stays attached while a filesystem may be being made on it. */
#ifdef BREAK_BEING_MADE
#define beingMade(i)	(false)
#else
#ifdef BREAK_DEAD_TOO
#define beingMade(i)	(s[i].fTried && !s[i].fInfo && s[i].f != DEAD)
#else
#define beingMade(i)	(s[i].fTried && !s[i].fInfo)
#endif
#endif
#ifdef BREAK_MAY_MAKE
#define mayMake(i)	(true)
#else
#define mayMake(i)	(s[i].fInfo || !detaching(i))
#endif

#define beginDetachF(i)	if :: s[i].m == ALIVE -> s[i].m = DYING :: else fi

inline beginDetachTop(i) {
	if
	:: s[i].f != GONE -> beginDetachF(i)
	:: else -> beginDetachV(i)
	fi
}

#define detaching(i)	(s[i].a != ALIVE || s[i].p == DYING)

inline begin(i) {
	oldV = s[i].v; oldA = s[i].a; oldP = s[i].p; oldF = s[i].f; oldM = s[i].m
}

/* settle, and the events of its changes and of the change before it (index in instance.go
   decides what watchers report). A worker finds nothing when it reads what it has removed
   itself, so that event is omitted. */
inline settle(i) {
	if
	:: s[i].life == DYING ->
		if :: s[i].v == ALIVE -> s[i].v = DYING :: else fi;
		if :: s[i].f == ALIVE -> s[i].f = DYING :: else fi;
		beginDetachTop(i)
	:: else
	fi;
#ifdef BREAK_MOUNT_FIRST
	if :: s[i].v != GONE && s[i].f != GONE && s[i].m != ALIVE -> beginDetachV(i) :: else fi;
#else
	if :: s[i].v != GONE && s[i].f != GONE && s[i].m == GONE && !beingMade(i) -> beginDetachV(i) :: else fi;
#endif
#ifdef BREAK_VOLUME_LAST
	if :: s[i].v == DYING && s[i].a == GONE -> s[i].v = DEAD :: else fi;
#else
#ifdef BREAK_DEAD
	if :: s[i].v == DYING && s[i].f == GONE -> s[i].v = DEAD :: else fi;
#else
	if :: s[i].v == DYING && s[i].a == GONE && s[i].f == GONE -> s[i].v = DEAD :: else fi;
#endif
#endif
	if :: s[i].f == DYING && s[i].m == GONE -> s[i].f = DEAD :: else fi;
#ifdef BREAK_EVENT
	if :: s[i].v != GONE && s[i].v != oldV -> V[i].unread = 1 :: else fi;
#else
	if :: s[i].v != GONE && (s[i].v != oldV || (s[i].a == GONE) != (oldA == GONE)) -> V[i].unread = 1 :: else fi;
#endif
	if :: s[i].a != GONE && s[i].a != oldA -> A[i].unread = 1 :: else fi;
	if :: s[i].p != GONE && s[i].p != oldP -> P[i].unread = 1; P[i].on = s[i].aOn :: else fi;
	if :: s[i].f != GONE && (s[i].f != oldF || (s[i].m == GONE) != (oldM == GONE)) -> F[i].unread = 1 :: else fi;
	if :: s[i].m != GONE && s[i].m != oldM -> M[i].unread = 1 :: else fi
}

/* ---- state/storage.go: what a user may do ---- */

inline attach(i, machine) {
	begin(i);
	s[i].a = ALIVE; s[i].aOn = machine;
	if :: hasFS(i) -> s[i].m = ALIVE :: else fi;
	settle(i)
}

inline spend() {
	if :: CHANGES < 255 -> changes-- :: else fi
}

proctype user(byte i) {
end:	do
	:: atomic { !calm && changes > 0 && s[i].life == ALIVE && s[i].a == GONE && s[i].m == GONE ->
		attach(i, 0); spend(); say("user: attach to machine 0") }
	:: atomic { !calm && changes > 0 && s[i].life == ALIVE && s[i].a == GONE && s[i].m == GONE && environs(i) && !hasFS(i) ->
		attach(i, 1); spend(); say("user: attach to machine 1") }
	:: atomic { !calm && changes > 0 && s[i].life == ALIVE &&
			(s[i].f != GONE && s[i].m == ALIVE || s[i].f == GONE && s[i].a == ALIVE && s[i].p != DYING) ->
		begin(i); beginDetachTop(i); settle(i); spend(); say("user: detach") }
	:: atomic { !calm && changes > 0 && s[i].life == ALIVE ->
		begin(i); s[i].life = DYING; settle(i); spend(); say("user: remove") }
	od
}

/* ---- state/machine.go, worker/diskmanager ---- */

proctype machines() {
end:	do
	:: atomic { !provisioned[0] -> provisioned[0] = 1; say("machine 0: provisioned") }
	:: atomic { !provisioned[1] && ENVIRON0 && !FS0 -> provisioned[1] = 1; say("machine 1: provisioned") }
	:: atomic { FS0 && r[0].seen != visible(0) -> r[0].seen = visible(0); sought[0] = 1; say("machine 0: devices published") }
	/* Any change to the instance applies the rules again. */
	:: atomic { FS0 && s[0].f == DEAD && !beingMade(0) && s[0].a != GONE && !detaching(0) ->
		begin(0); settle(0); say("state: a status is set") }
#if N > 1
	:: atomic { FS1 && r[1].seen != visible(1) -> r[1].seen = visible(1); sought[1] = 1; say("machine 0: devices published") }
#endif
	od
}

/* ---- crashes: a worker starts again, and must read everything ---- */

inline forget(e) {
	e.life = GONE; e.rec = 0; e.args = 0; e.on = 0; e.phase = IDLE; e.op = NONE;
	e.attached = 0; e.held = 0; e.uncertain = 0; e.unresolved = 0; e.stale = 0; e.unmade = 0
}

inline crashVolume(i) {
	if :: V[i].phase == RUNNING || A[i].phase == RUNNING -> r[i].calls = r[i].calls - (V[i].phase == RUNNING) - (A[i].phase == RUNNING) :: else fi;
	forget(V[i]); V[i].unread = (s[i].v != GONE);
	forget(A[i]); A[i].unread = (s[i].a != GONE)
}

inline crashPlan(i, machine) {
	if
	:: P[i].on == machine && (P[i].life != GONE || P[i].unread) ->
		forget(P[i]); P[i].unread = (s[i].p != GONE); P[i].on = (s[i].p != GONE && machine)
	:: else
	fi
}

inline crashFilesystem(i) {
	if :: F[i].phase == RUNNING || M[i].phase == RUNNING -> r[i].fcalls = 0 :: else fi;
	forget(F[i]); F[i].unread = (s[i].f != GONE);
	forget(M[i]); M[i].unread = (s[i].m != GONE);
	known[i] = 0; sought[i] = 0
}

inline crashMachine0(i) {
	if :: !environs(i) -> crashVolume(i) :: else fi;
	if :: planned(i) -> crashPlan(i, 0) :: else fi;
	if :: hasFS(i) -> crashFilesystem(i) :: else fi
}

/* After a restart, everything of an instance on the machine is gone, except the attachment of a
   volume of the environment. */
inline reboot0(i) {
	if :: !environs(i) -> r[i].attached[0] = 0 :: else fi;
	r[i].session[0] = 0; r[i].mounted = 0
}

inline crashed() {
	if :: CRASHES < 255 -> crashes-- :: else fi
}

proctype crash() {
end:	do
	:: atomic { !calm && crashes > 0 && ENVIRON0 -> crashVolume(0); crashed(); say("CRASH of the environment's worker") }
	:: atomic { !calm && crashes > 0 && ENVIRON0 && PLAN0 && !FS0 -> crashPlan(0, 1);
		if :: r[0].session[1] = 0 :: skip fi; crashed(); say("CRASH of machine 1's worker, or machine") }
	:: atomic { !calm && crashes > 0 && (!ENVIRON0 || PLAN0 || FS0 || N > 1) ->
		crashMachine0(0);
#if N > 1
		crashMachine0(1);
#endif
		if
		:: say("RESTART of machine 0:"); reboot0(0);
#if N > 1
			reboot0(1)
#endif
		:: skip
		fi;
		crashed(); say("CRASH of machine 0's worker") }
	:: atomic { !calm -> calm = 1; say("nothing disturbs from here on") }
	od
}

/* ---- facts.go, volume_facts.go, plan_facts.go, filesystem_facts.go: reading ---- */

inline learn(e, life_, rec_, args_, attempted_) {
	e.unread = 0; e.stale = 0;
	if
	:: life_ == GONE ->
		/* Only the worker itself removes what it is working on. */
		assert(e.phase != RUNNING && !e.unresolved);
		forget(e)
	:: else ->
		e.life = life_; e.rec = rec_; e.args = args_;
		if :: attempted_ && !e.rec && !underway(e) -> e.uncertain = 1 :: else fi
	fi
}

/* ---- internal/plan/rules.go ---- */

/* Only one call at a time works on a volume, or on a filesystem, and its attachments and plans
   (take in queue.go). */
#ifdef BREAK_BUSY
#define freeV(i)	(true)
#else
#define freeV(i)	(!inHands(V[i]) && !inHands(A[i]) && (environs(i) || !inHands(P[i])))
#endif
#define freeP(i)	(!inHands(P[i]) && (environs(i) || !inHands(V[i]) && !inHands(A[i])))
#define freeF(i)	(!inHands(F[i]) && !inHands(M[i]))

#ifdef BREAK_UNCERTAIN
#define doubted(e)	(false)
#define doubtedA(e)	(false)
#else
#define doubted(e)	(e.uncertain && !e.rec && (e.life != ALIVE || !e.args))
#define doubtedA(e)	(e.uncertain)
#endif

#ifdef BREAK_RECORDED
#define recordedV(i)	(false)
#else
#define recordedV(i)	(V[i].rec)
#endif

/* A creation that may have left something is repeated, to learn what it has made. */
#define toCreateV(i)	(V[i].life != GONE && !V[i].stale && \
				(doubted(V[i]) || V[i].life == ALIVE && !recordedV(i) && V[i].args))
#define createV(i)	(toCreateV(i) && \
				(doubted(V[i]) || provisioned[V[i].on] && !(A[i].op != ATTACH && underway(A[i]))))
#define creatingV(i)	(V[i].op == CREATE && underway(V[i]) || V[i].uncertain && !V[i].rec && (toCreateV(i) || V[i].stale))
#define removeV(i)	(V[i].life == DEAD && !V[i].stale && !V[i].rec && !doubted(V[i]))
#define destroyV(i)	(V[i].life == DEAD && !V[i].stale && V[i].rec && !A[i].held)

/* The filesystem uses the volume's attachment; only a machine's worker knows that. */
#ifdef BREAK_IN_USE
#define stoodOn(i)	(false)
#else
#define stoodOn(i)	(M[i].held || F[i].held)
#endif

#ifdef BREAK_REMOVE
#define undone(e)	(true)
#else
#define undone(e)	(!e.rec && !doubtedA(e))
#endif

/* To detach a volume or filesystem, the worker needs its ID, which may be known only from the
   volume or filesystem itself. */
#ifdef BREAK_UNKNOWN
#define named(e, of)	(true)
#else
#define named(e, of)	(e.args || of.life != GONE)
#endif
#define removeA(i)	(A[i].life > ALIVE && !creatingV(i) && undone(A[i]))
#define detachA(i)	(A[i].life > ALIVE && !creatingV(i) && !undone(A[i]) && named(A[i], V[i]) && \
				(environs(i) || !stoodOn(i)))

#ifdef BREAK_AGAIN
#define done(e)		(e.rec)
#else
#define done(e)		(e.attached && e.rec)
#endif
#define attachA(i)	(A[i].life == ALIVE && !creatingV(i) && !done(A[i]) && \
				!(V[i].op == DESTROY && underway(V[i])) && (V[i].rec || A[i].args) && provisioned[A[i].on])

#define attachP(i)	(P[i].life == ALIVE && !P[i].attached)
#define detachP(i)	(P[i].life > ALIVE && !stoodOn(i))

/* backingNeed: the volume is attached here and its plan is carried out, as far as this worker is
   responsible for that, and its device is known. The model omits calls for a device that is not
   visible: they fail and change nothing. */
#define restsA(i)	(A[i].life == GONE || A[i].life == ALIVE && done(A[i]) && !busy(A[i]))
#define restsP(i)	(P[i].life == GONE || P[i].life == ALIVE && P[i].attached && !busy(P[i]))
#define ready(i)	((environs(i) || restsA(i)) && restsP(i) && known[i] && visible(i))

/* A filesystem is made if it is to be mounted here, or may have been made. */
#if defined(BREAK_WANTED) || defined(NO_ATTEMPTS)
#define wantedHere(i)	(true)
#else
#define wantedHere(i)	(M[i].life == ALIVE || F[i].uncertain)
#endif

#define createF(i)	(F[i].life == ALIVE && !F[i].rec && wantedHere(i) && ready(i))
#define removeF(i)	(F[i].life == DEAD && !F[i].rec)
#define destroyF(i)	(F[i].life == DEAD && F[i].rec && !M[i].held)
#define creatingF(i)	(F[i].op == CREATE && underway(F[i]))
#define removeM(i)	(M[i].life > ALIVE && !creatingF(i) && undone(M[i]))
#define detachM(i)	(M[i].life > ALIVE && !creatingF(i) && !undone(M[i]) && named(M[i], F[i]))
#define attachM(i)	(M[i].life == ALIVE && F[i].life != GONE && !creatingF(i) && !done(M[i]) && \
				!(F[i].op == DESTROY && underway(F[i])) && (F[i].rec || M[i].args) && \
				provisioned[0] && ready(i))

/* ---- queue.go: a call begins ---- */

inline call(e, o) {
	e.op = o; e.phase = RUNNING;
	if :: o == CREATE || o == ATTACH -> e.held = 1 :: else fi
}

/* An attempt is noted in the state before the call, unless it has been noted, or is repeated. */
#ifdef NO_ATTEMPTS_CREATE
#define noted(e)	(true)
#else
#define noted(e)	(e.rec || e.unresolved || e.op == CREATE && doubted(e))
#endif
#ifdef NO_ATTEMPTS_ATTACH
#define notedA(e)	(true)
#else
#define notedA(e)	(e.rec || e.unresolved)
#endif

inline callV(i) { r[i].calls++; assert(r[i].calls == 1) }	/* behaviour 35: never two operations at once */
inline callF(i) { r[i].fcalls++; assert(r[i].fcalls == 1) }

/* Behaviour 35: a volume that the worker knows to be unwanted is created only if an attempt may
   have made it already. */
inline createsV(i) {
	assert(A[i].life == ALIVE || A[i].unread || r[i].begun);
	r[i].begun = 1; callV(i); say("worker: create volume")
}
inline createsF(i) { callF(i); say("worker: create filesystem") }

/* An operation that may still be in progress is repeated unchanged. */
#ifdef BREAK_BUSY
#define free(e)	(e.phase != PUBLISHING && e.phase != PLANNED)
#else
#define free(e)	(e.phase == IDLE)
#endif
#define may(e, o, wanted)	(free(e) && (e.unresolved && e.op == o || !e.unresolved && wanted))

/* ---- finish.go: a call ends ---- */

inline succeeded(e) {
	e.phase = PUBLISHING; e.uncertain = 0; e.unresolved = 0;
	if
	:: e.op == DETACH -> e.attached = 0; e.held = 0
	:: e.op == CREATE -> e.held = 0
	:: else
	fi
}

#define makes(e)	(e.op == CREATE || e.op == ATTACH)

/* An attempt has made nothing: its note is to be removed from the state. */
inline madeNothing(e) {
#ifndef NO_ATTEMPTS
	if :: makes(e) && !e.rec && !e.uncertain && !e.unresolved -> e.unmade = 1 :: else fi
#else
	skip
#endif
}

/* A volume that was not made is not attached either. */
inline madeNoneV(i) {
#ifndef BREAK_ALONG
	if :: V[i].unmade && !A[i].rec && !underway(A[i]) -> A[i].uncertain = 0 :: else fi
#else
	skip
#endif
}

/* withdraw (called by Noted): the state refuses the note, or the operation is no longer wanted. */
inline withdraw(e) {
	e.phase = IDLE;
	if :: e.op == CREATE -> e.held = 0 :: else fi;
	madeNothing(e); e.op = NONE
}

/* The whole call has failed: its effect is not known. */
inline lost(e) {
	e.phase = IDLE;
	if :: e.op == CREATE || e.op == ATTACH -> e.uncertain = 1 :: else fi;
	if :: e.op == CREATE -> e.held = 0 :: else fi;
	e.op = NONE
}

/* The operation may still be in progress. */
inline inProgress(e) {
	e.phase = IDLE;
#ifndef BREAK_UNRESOLVED
	e.unresolved = 1
#endif
}

#ifdef FAULTS
#define faulty	(!calm)
#else
#define faulty	(false)
#endif

/* answer ends a call that has had its effect. */
inline answer(e) {
	if
	:: succeeded(e)
	:: faulty && !e.unresolved -> lost(e)
	:: faulty -> inProgress(e)
	fi
}

/* fail ends a call that has had no effect. A permanent failure of a creation, if nothing has been
   made, says the same of all earlier attempts. */
inline fail(e, there) {
	if
	:: !e.unresolved -> lost(e)
	:: inProgress(e)
	:: !e.unresolved || !there ->
		if
		:: e.op == CREATE && !there ->
			/* The volume waits for a change or a resync, and is then read again. */
			e.uncertain = 0; e.unresolved = 0; e.stale = 1; e.unread = 1
		:: else -> e.unresolved = 0
		fi;
		withdraw(e)
	fi
}

inline took(e) {
	e.rec = 1; e.attached = (e.op == ATTACH); e.phase = IDLE; e.op = NONE
}

/* A volume has been attached or detached here: its device must be looked up again. */
inline moved(i) {
	if :: hasFS(i) -> known[i] = 0; sought[i] = 1 :: else fi
}

/* SetAttempts: an attempt to make a volume is also one to attach it. */
inline noteV(i, attempted) {
	s[i].vTried = attempted;
#ifndef NO_ATTEMPTS_ATTACH
	if :: s[i].a != GONE && !s[i].aInfo -> s[i].aTried = attempted :: else fi
#endif
}

inline takeBack(e, noted_) {
	e.unmade = 0;
#ifndef BREAK_UNMADE
	noted_ = 0;
#endif
	say("state: nothing has come of an attempt")
}

/* ---- the worker whose scope has the volume: the environment's, or machine 0's ---- */

proctype volumeWorker(byte i) {
end:	do
	/* read */
	:: atomic { V[i].unread && !V[i].unmade ->
		learn(V[i], s[i].v, s[i].vInfo, (s[i].a != GONE && !detaching(i) || s[i].vTried), s[i].vTried);
		if :: s[i].a != GONE && !detaching(i) -> V[i].on = s[i].aOn :: else fi }
	:: atomic { A[i].unread && !A[i].unmade && !V[i].unmade ->
#ifndef BREAK_REREAD
		/* noteUnwantedAttachment: the volume is not made with parameters that were read earlier. */
		if
		:: s[i].a > ALIVE && A[i].life <= ALIVE && V[i].life == ALIVE && !V[i].rec -> V[i].stale = 1; V[i].unread = 1
		:: else
		fi;
#endif
		learn(A[i], s[i].a, s[i].aInfo, s[i].vInfo, s[i].aTried);
		A[i].on = s[i].aOn }

	/* the volume */
	:: atomic { may(V[i], CREATE, createV(i)) && freeV(i) && !V[i].unmade ->
		call(V[i], CREATE);
		if :: noted(V[i]) -> createsV(i) :: else -> V[i].phase = NOTING fi }
	:: atomic { V[i].phase == NOTING ->
		noteV(i, 1); say("state: volume noted as attempted");
		if :: createV(i) -> V[i].phase = RUNNING; createsV(i) :: else -> r[i].begun = 1; withdraw(V[i]); madeNoneV(i) fi }
	:: atomic { V[i].unmade -> takeBack(V[i], s[i].vTried);
		if :: !s[i].vTried -> noteV(i, 0) :: else fi;
		r[i].begun = 0 }
	:: atomic { may(V[i], DESTROY, destroyV(i)) && freeV(i) -> call(V[i], DESTROY); callV(i); say("worker: destroy volume") }
	:: atomic { may(V[i], REMOVE, removeV(i)) -> V[i].op = REMOVE; V[i].phase = PUBLISHING; say("worker: remove volume, no call") }
	:: atomic { V[i].phase == RUNNING ->
		r[i].calls--;
		if
		:: V[i].op == CREATE ->
			assert(!s[i].vInfo);				/* behaviour 35: never a second creation */
#ifdef BREAK_TAG
			r[i].made++;
#else
			r[i].made = 1;
#endif
			assert(r[i].made == 1);				/* behaviour 34: no second volume */
		:: V[i].op == DESTROY ->
			assert(!attachedAnywhere(i));			/* behaviour 35: not destroyed while attached */
			assert(!r[i].mounted);
			r[i].made = 0; r[i].formatted = 0
		fi;
		say(" done at the provider: volume"); answer(V[i]) }
	:: atomic { V[i].phase == RUNNING && faulty -> r[i].calls--; fail(V[i], r[i].made); madeNoneV(i); say(" failed: volume") }
	:: atomic { V[i].phase == PUBLISHING ->
		say("state: volume recorded or removed"); begin(i);
		if
		:: V[i].op == CREATE ->
			s[i].vInfo = 1; s[i].vTried = 0; r[i].begun = 0; took(V[i]);
			if :: environs(i) && s[i].a != GONE -> sought[i] = hasFS(i) :: else fi
		:: else ->
			assert(s[i].v == DEAD && s[i].a == GONE);
			assert(s[i].f == GONE);				/* the filesystem is removed before the volume */
			s[i].v = GONE; s[i].vInfo = 0; s[i].vTried = 0; s[i].aOn = 0; r[i].begun = 0;
			forget(V[i]);
			assert(r[i].made == 0)				/* no volume leaks */
		fi;
		settle(i) }

	/* its attachment */
	:: atomic { may(A[i], ATTACH, attachA(i)) && freeV(i) && !A[i].unmade ->
		call(A[i], ATTACH);
		if :: notedA(A[i]) -> callV(i); say("worker: attach volume") :: else -> A[i].phase = NOTING fi }
	:: atomic { A[i].phase == NOTING ->
		s[i].aTried = 1; say("state: volume attachment noted as attempted");
		if
		:: attachA(i) -> A[i].phase = RUNNING; callV(i); say("worker: attach volume")
		:: else -> withdraw(A[i])
		fi }
	:: atomic { A[i].unmade -> takeBack(A[i], s[i].aTried) }
	:: atomic { may(A[i], DETACH, detachA(i)) && freeV(i) ->
		assert(A[i].args || V[i].rec);				/* the volume's ID is known */
		call(A[i], DETACH); callV(i); say("worker: detach volume") }
	:: atomic { may(A[i], REMOVE, removeA(i)) -> A[i].op = REMOVE; A[i].phase = PUBLISHING; say("worker: remove volume attachment, no call") }
	:: atomic { A[i].phase == RUNNING ->
		r[i].calls--;
		if
		:: A[i].op == ATTACH ->
			assert(r[i].made == 1);
			assert(!r[i].attached[1 - A[i].on]);		/* attached to one machine at a time */
			r[i].attached[A[i].on] = 1
		:: A[i].op == DETACH ->
			assert(!r[i].mounted);				/* behaviour 35: not while its filesystem is mounted */
			assert(!r[i].session[A[i].on]);			/* the plan is undone before the attachment */
			r[i].attached[A[i].on] = 0
		fi;
		say(" done at the provider: volume attachment"); answer(A[i]);
		if :: A[i].phase == PUBLISHING && A[i].op == DETACH && !environs(i) -> moved(i) :: else fi }
	:: atomic { A[i].phase == RUNNING && faulty -> r[i].calls--; fail(A[i], r[i].attached[A[i].on]); say(" failed: volume attachment") }
	/* publish.go: the plan is recorded before the attachment. */
	:: atomic { A[i].phase == PUBLISHING && A[i].op == ATTACH && planned(i) ->
		begin(i);
#ifdef BREAK_PLAN_GOING
		if :: s[i].p == GONE -> s[i].p = ALIVE :: else fi;
#else
		if :: !detaching(i) && s[i].p == GONE -> s[i].p = ALIVE :: else fi;
#endif
		A[i].phase = PLANNED; say("state: plan recorded, where it is wanted");
		settle(i) }
	:: atomic { (A[i].phase == PLANNED || A[i].phase == PUBLISHING && !(A[i].op == ATTACH && planned(i))) ->
		say("state: volume attachment recorded or removed"); begin(i);
		if
		:: A[i].op == ATTACH ->
			s[i].aInfo = 1; s[i].aTried = 0; took(A[i]);
			if :: environs(i) -> sought[i] = hasFS(i) :: else -> moved(i) fi
		:: else ->
			assert(s[i].a == DYING);
			assert(s[i].p == GONE && s[i].m == GONE);	/* the mount and the plan are removed first */
			assert(!r[i].attached[s[i].aOn]);		/* no attachment leaks */
			s[i].a = GONE; s[i].aInfo = 0; s[i].aTried = 0; s[i].aOn = 0;
			forget(A[i])
		fi;
		settle(i) }
	od
}

/* ---- the machine's worker: plans ---- */

proctype planWorker(byte i) {
end:	do
	:: atomic { P[i].unread -> learn(P[i], s[i].p, 1, 1, 0); P[i].on = (s[i].p != GONE && s[i].aOn) }
	:: atomic { may(P[i], ATTACH, attachP(i)) && freeP(i) -> call(P[i], ATTACH); say("worker: carry plan out") }
	:: atomic { may(P[i], DETACH, detachP(i)) && freeP(i) -> call(P[i], DETACH); say("worker: undo plan") }
	:: atomic { P[i].phase == RUNNING ->
		if
		:: P[i].op == ATTACH ->
			assert(r[i].attached[P[i].on]);			/* the plan needs the attachment */
			r[i].session[P[i].on] = 1
		:: P[i].op == DETACH ->
			assert(!r[i].mounted);				/* unmounted before the plan is undone */
			r[i].session[P[i].on] = 0
		fi;
		say(" done at the provider: plan"); answer(P[i]);
		if :: P[i].phase == PUBLISHING && P[i].op == DETACH -> moved(i) :: else fi }
	:: atomic { P[i].phase == RUNNING && faulty -> fail(P[i], r[i].session[P[i].on]); P[i].unmade = 0; say(" failed: plan") }
	:: atomic { P[i].phase == PUBLISHING ->
		say("state: plan recorded or removed"); begin(i);
		if
		:: P[i].op == ATTACH -> took(P[i]); moved(i)
		:: else ->
			assert(s[i].p == DYING && s[i].m == GONE);
			assert(!r[i].session[s[i].aOn]);		/* no plan leaks */
			s[i].p = GONE; s[i].a = DYING;
			forget(P[i])
		fi;
		settle(i) }
	od
}

/* ---- the machine's worker: the filesystem on the volume ---- */

/* provisionedInfo: a dead filesystem that an attempt may have made on a volume is read as
   recorded, so that it is destroyed. */
#ifdef BREAK_KNOWN
#define knownF(i)	(s[i].fInfo)
#else
#define knownF(i)	(s[i].fInfo || s[i].fTried && s[i].f == DEAD && s[i].v != GONE)
#endif

proctype filesystemWorker(byte i) {
end:	do
	:: atomic { F[i].unread && !F[i].unmade ->
		/* From now on, the worker needs to know the device. */
		if :: F[i].life == GONE -> sought[i] = 1 :: else fi;
		learn(F[i], s[i].f, knownF(i), 1, s[i].fTried) }
	:: atomic { M[i].unread && !M[i].unmade -> learn(M[i], s[i].m, s[i].mInfo, s[i].fInfo, s[i].mTried) }
	:: atomic { sought[i] && F[i].life != GONE ->
		sought[i] = 0; known[i] = (s[i].vInfo && s[i].aInfo && r[i].seen) }

	/* A refused note is retried later; once calm is set, the step waits until it is accepted. */
	:: atomic { may(F[i], CREATE, createF(i)) && freeF(i) && !F[i].unmade && (!calm || mayMake(i)) ->
		call(F[i], CREATE);
		if :: noted(F[i]) -> createsF(i) :: else -> F[i].phase = NOTING fi }
	:: atomic { F[i].phase == NOTING ->
		if
		:: mayMake(i) ->
			s[i].fTried = 1; say("state: filesystem noted as attempted");
			if :: createF(i) -> F[i].phase = RUNNING; createsF(i) :: else -> withdraw(F[i]) fi
		:: else -> withdraw(F[i]); say("state: volume goes, no filesystem is to be made on it")
		fi }
	:: atomic { F[i].unmade -> begin(i); takeBack(F[i], s[i].fTried); settle(i) }
	:: atomic { may(F[i], DESTROY, destroyF(i)) && freeF(i) -> call(F[i], DESTROY); callF(i); say("worker: destroy filesystem") }
	:: atomic { may(F[i], REMOVE, removeF(i)) -> F[i].op = REMOVE; F[i].phase = PUBLISHING; say("worker: remove filesystem, no call") }
	:: atomic { F[i].phase == RUNNING ->
		r[i].fcalls--;
		if
		:: F[i].op == CREATE ->
			assert(visible(i));
			assert(!s[i].fInfo);
			r[i].formatted = 1
		:: F[i].op == DESTROY ->
			assert(!r[i].mounted);
			r[i].formatted = 0
		fi;
		say(" done at the provider: filesystem"); answer(F[i]) }
	:: atomic { F[i].phase == RUNNING && faulty -> r[i].fcalls--; fail(F[i], r[i].formatted); say(" failed: filesystem") }
	:: atomic { F[i].phase == PUBLISHING ->
		say("state: filesystem recorded or removed"); begin(i);
		if
		:: F[i].op == CREATE -> s[i].fInfo = 1; s[i].fTried = 0; took(F[i])
		:: else ->
			assert(s[i].f == DEAD && s[i].m == GONE);
			assert(!r[i].mounted);
			assert(!r[i].formatted);			/* no filesystem leaks */
			s[i].f = GONE; s[i].fInfo = 0; s[i].fTried = 0;
			forget(F[i]); known[i] = 0; sought[i] = 0
		fi;
		settle(i) }

	:: atomic { may(M[i], ATTACH, attachM(i)) && freeF(i) && !M[i].unmade ->
		call(M[i], ATTACH);
		if :: notedA(M[i]) -> callF(i); say("worker: mount") :: else -> M[i].phase = NOTING fi }
	:: atomic { M[i].phase == NOTING ->
		s[i].mTried = 1; say("state: mount noted as attempted");
		if
		:: attachM(i) -> M[i].phase = RUNNING; callF(i); say("worker: mount")
		:: else -> withdraw(M[i])
		fi }
	:: atomic { M[i].unmade -> takeBack(M[i], s[i].mTried) }
	:: atomic { may(M[i], DETACH, detachM(i)) && freeF(i) -> call(M[i], DETACH); callF(i); say("worker: unmount") }
	:: atomic { may(M[i], REMOVE, removeM(i)) -> M[i].op = REMOVE; M[i].phase = PUBLISHING; say("worker: remove mount, no call") }
	:: atomic { M[i].phase == RUNNING ->
		r[i].fcalls--;
		if
		:: M[i].op == ATTACH ->
			assert(visible(i) && r[i].formatted);
			r[i].mounted = 1
		:: M[i].op == DETACH -> r[i].mounted = 0
		fi;
		say(" done at the provider: mount"); answer(M[i]) }
	:: atomic { M[i].phase == RUNNING && faulty -> r[i].fcalls--; fail(M[i], r[i].mounted); say(" failed: mount") }
	:: atomic { M[i].phase == PUBLISHING ->
		say("state: mount recorded or removed"); begin(i);
		if
		:: M[i].op == ATTACH -> s[i].mInfo = 1; s[i].mTried = 0; took(M[i])
		:: else ->
			assert(s[i].m == DYING);
			assert(!r[i].mounted);				/* no mount leaks */
			s[i].m = GONE; s[i].mInfo = 0; s[i].mTried = 0;
			forget(M[i])
		fi;
		settle(i) }
	od
}

init {
	atomic {
		byte i = 0;
		do
		:: i < N ->
			s[i].life = ALIVE; s[i].v = ALIVE; V[i].unread = 1;
			if :: hasFS(i) -> s[i].f = ALIVE; F[i].unread = 1 :: else fi;
			attach(i, 0);
			run user(i);
			run volumeWorker(i);
			if :: planned(i) -> run planWorker(i) :: else fi;
			if :: hasFS(i) -> run filesystemWorker(i) :: else fi;
			i++
		:: else -> break
		od;
		i = 0;
		run machines();
		run crash()
	}
}

/* ---- liveness: once users and crashes have ended, everything ends as it is wanted ---- */

#define nothing(i)	(!attachedAnywhere(i) && !r[i].session[0] && !r[i].session[1] && !r[i].mounted && \
				s[i].a == GONE && s[i].p == GONE && s[i].m == GONE)
#define up(i)		(s[i].life == ALIVE && s[i].a == ALIVE && s[i].aInfo && r[i].attached[s[i].aOn] && \
				(!planned(i) || s[i].p == ALIVE && r[i].session[s[i].aOn]) && \
				(!hasFS(i) || s[i].m == ALIVE && s[i].mInfo && r[i].mounted))
#define down(i)		(s[i].life == ALIVE && nothing(i))
#define away(i)		(s[i].v == GONE && s[i].f == GONE && nothing(i) && r[i].made == 0)
#define asWanted(i)	(up(i) || down(i) || away(i))
#if N > 1
#define allAsWanted	(asWanted(0) && asWanted(1))
#else
#define allAsWanted	(asWanted(0))
#endif

#ifdef LIVE
never {
	do
	:: true
	:: calm && !allAsWanted -> break
	od;
accept:
	do
	:: !allAsWanted
	od
}
#endif
