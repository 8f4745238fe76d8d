use super::swimlane::{
    AicoreTaskRecord, AicpuOrchPhaseRecord, AicpuSchedPhaseRecord, AicpuTaskRecord, ReadyQueueEntry,
    SchedPhaseKind,
};
use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::vec::Vec;
use zerocopy::{FromZeros, IntoBytes};

fn hex(value: &(impl IntoBytes + zerocopy::Immutable)) -> std::string::String {
    value.as_bytes().iter().map(|byte| std::format!("{byte:02x}")).collect()
}

/// Bytes written by hand from the contract's tables, so that a slip in a declaration and in its literals cannot
/// cancel out.
#[test]
fn golden_bytes() {
    let task = AicpuTaskRecord {
        dispatch_time: 0x1122_3344_5566_7788,
        finish_time: 0x99aa_bbcc_ddee_ff00,
        reg_task_id: 0x0102_0304,
        ..FromZeros::new_zeroed()
    };
    assert_eq!(hex(&task), "887766554433221100ffeeddccbbaa9904030201000000000000000000000000");

    let core = AicoreTaskRecord {
        start_time: 1,
        end_time: 2,
        task_token_raw: 0x0000_0003_0000_0004,
        reg_task_id: 5,
        receive_to_start_cycles: 6,
    };
    assert_eq!(hex(&core), "0100000000000000020000000000000004000000030000000500000006000000");

    let sched = AicpuSchedPhaseRecord {
        start_time: 1,
        end_time: 2,
        loop_iter: 3,
        kind: SchedPhaseKind::GRAPH_PREPARE,
        tasks_processed: 5,
        phase_data: [6, 7],
        shared_depth_at_start: [8, -1, 9],
        shared_depth_at_end: [10, 11, -2],
        ..FromZeros::new_zeroed()
    };
    assert_eq!(
        hex(&sched),
        "01000000000000000200000000000000030000000d000000050000000600000007000000\
         0800ffff09000a000b00feff00000000000000000000000000000000"
    );

    let orch = AicpuOrchPhaseRecord { start_time: 1, end_time: 2, task_id: 3, submit_idx: 4, _pad: 0 };
    assert_eq!(hex(&orch), "0100000000000000020000000000000003000000000000000400000000000000");

    let host = host_phase::HostPhaseRecord {
        start_ns: 1,
        end_ns: 2,
        payload: 3,
        kind: host_phase::HostPhaseKind::BUILD_DEFINITION,
        index: 5,
        thread_id: 6,
        _pad: 0,
    };
    assert_eq!(
        hex(&host),
        "01000000000000000200000000000000030000000000000010000000050000000600000000000000"
    );

    let entry = ReadyQueueEntry {
        core_index: 1,
        kind: PoolKind::AICORE_TASK,
        buffer_ptr: 0x1122_3344_5566_7788,
        buffer_seq: 4,
        ..FromZeros::new_zeroed()
    };
    assert_eq!(hex(&entry), "0100000003000000887766554433221104000000000000000000000000000000");
}

#[test]
#[cfg_attr(miri, ignore = "arithmetic only, slow to interpret")]
fn golden_bytes_of_the_other_subsystems() {
    let pmu = pmu::a2a3::Record {
        task_id: 1,
        func_id: 2,
        core_type: pmu::CoreType::AIV,
        pmu_total_cycles: 3,
        pmu_counters: [4, 5, 6, 7, 8, 9, 10, 11],
        ..FromZeros::new_zeroed()
    };
    assert_eq!(
        hex(&pmu),
        "010000000000000002000000010000000300000000000000\
         0400000005000000060000000700000008000000090000000a0000000b000000\
         0000000000000000"
    );

    let dump = args_dump::Record {
        task_id: 1,
        role: args_dump::Role::INOUT,
        stage: args_dump::Stage::AFTER_COMPLETION,
        ndims: 3,
        arg_index: 4,
        dtype: 5,
        truncated: 1,
        is_contiguous: 0,
        payload_offset: 6,
        payload_size: 7,
        scalar_value: 8,
        kind: args_dump::ArgKind::SCALAR,
        flags: args_dump::ArgFlags::INDEX_AMBIGUOUS,
        func_ids: [9, 10, args_dump::UNKNOWN_FUNC],
        func_count: 2,
        start_offset: 11,
        strides: [12, 13, 14, 15, 16],
        shapes: [17, 18, 19, 20, 21],
        ..FromZeros::new_zeroed()
    };
    assert_eq!(
        hex(&dump),
        "01000000000000000201030004000000050100000000000006000000000000000700000000000000\
         0800000000000000010109000a00ffff02000000000000000b00000000000000\
         0c0000000d0000000e0000000f000000100000001100000012000000130000001400000015000000\
         00000000000000000000000000000000"
    );

    let scope = scope_stats::Record {
        site_file_basename: *b"abcdefghijklmnopqrstuvwxyz01234\0",
        heap_start: 1,
        heap_end: 2,
        site_line: 3,
        task_start: -4,
        task_end: 5,
        dep_pool_start: 6,
        dep_pool_end: 7,
        tensormap_used: 8,
        depth: 9,
        ring_id: -1,
        phase: scope_stats::ScopePhase::END,
        _pad: 0,
    };
    assert_eq!(
        hex(&scope),
        "6162636465666768696a6b6c6d6e6f707172737475767778797a303132333400\
         0100000000000000020000000000000003000000fcffffff050000000600000007000000080000000900ffff01000000"
    );

    let task = dep_gen::Record {
        task_id: 1,
        flags: dep_gen::RecordFlags::MANUAL_SCOPE | dep_gen::RecordFlags::EARLY_DISPATCH,
        tensor_count: 2,
        explicit_dep_count: 3,
        explicit_deps: [4; dep_gen::MAX_EXPLICIT_DEPS],
        arg_types: [5; dep_gen::MAX_TENSORS],
        kernel_id: [6, dep_gen::NO_KERNEL, 7],
        block_num: 8,
        tensors: [[9; dep_gen::TENSOR_BYTES]; dep_gen::MAX_TENSORS],
    };
    assert_eq!(
        hex(&task),
        [
            "01000000000000001100000002000300",
            &"0400000000000000".repeat(64),
            &"05".repeat(32),
            "06000000ffffffff0700000008000000",
            &"09".repeat(4096),
        ]
        .concat()
    );

    let chain = dep_gen::OverflowRecord {
        task_id: 1,
        flags: dep_gen::RecordFlags::IS_OVERFLOW | dep_gen::RecordFlags::LAST_OVERFLOW,
        dep_count: 2,
        _reserved: 0,
        deps: [3; dep_gen::OVERFLOW_DEPS],
    };
    assert_eq!(hex(&chain), ["01000000000000000c00000002000000", &"0300000000000000".repeat(582)].concat());
}

#[test]
fn regions_have_the_bytes_of_the_contract() {
    let bytes = |arch| SubsystemId::ALL.map(|subsystem| region(subsystem, Shape::full(arch)).bytes());
    assert_eq!(bytes(ArchId::A2a3), [156_352, 32_320, 1_280, 9_344, 1_344]);
    assert_eq!(bytes(ArchId::A5), [276_544, 55_424, 1_536, 14_208, 1_664]);
    assert_eq!((device_phase::task_timing_offset(4), device_phase::bytes(4)), (656, 1680));
    assert_eq!((device_phase::task_timing_offset(5), device_phase::bytes(5)), (816, 2096));
}

#[test]
fn task_pools_follow_the_cores_of_the_run_and_phase_pools_the_lanes_of_the_architecture() {
    let region = swimlane::region(Shape::new(ArchId::A5, 2, 3).unwrap());
    let base = |kind| region.array(kind).unwrap().base;
    assert_eq!(base(PoolKind::AICPU_TASK), 233_152);
    assert_eq!(base(PoolKind::AICORE_TASK), 233_152 + 3 * 192);
    assert_eq!(base(PoolKind::SCHED_PHASE), 233_152 + 6 * 192);
    assert_eq!(base(PoolKind::ORCH_PHASE), 233_152 + 11 * 192);
    assert_eq!(region.bytes(), 233_152 + 16 * 192);

    let pool = region.pool(PoolKind::ORCH_PHASE, Instance(4)).unwrap();
    assert_eq!(pool.current_ptr, 233_152 + 15 * 192);
    assert_eq!(pool.total_records, Some(pool.current_ptr + 12));
    assert_eq!(pool.dropped_records, pool.current_ptr + 16);
    assert_eq!(pool.free_slot(7, region.free_slots()), pool.current_ptr + 64 + 3 * 8);
    assert_eq!(pool.free_head, pool.current_ptr + 96);
    assert_eq!(region.pool_number(PoolKind::ORCH_PHASE, Instance(4)), Some(15));

    assert_eq!(region.pool(PoolKind::AICPU_TASK, Instance(3)), None);
    assert_eq!(region.pool(PoolKind(4), Instance(0)), None);
    assert_eq!(region.lane(Lane(2)), None);
    let lane = region.lane(Lane(1)).unwrap();
    assert_eq!(lane.entry(2), (1456 + 2) * 32);
    assert_eq!((lane.head, lane.tail), (232_964, 232_984));
    assert_eq!(region.gates().fq_contended, 233_128 + 12);
}

#[test]
fn a_record_lies_inside_its_buffer() {
    for subsystem in SubsystemId::ALL {
        for array in region(subsystem, Shape::full(ArchId::A2a3)).arrays() {
            let buffer = array.buffer;
            let last = buffer.record(buffer.capacity - 1).unwrap();
            let end = last + buffer.record_bytes;
            assert!(
                end <= buffer.bytes && (buffer.count < buffer.records || buffer.count >= end),
                "{}",
                array.name
            );
            assert_eq!(buffer.record(buffer.capacity), None, "{}", array.name);
        }
    }
}

#[test]
fn shapes_beyond_the_architecture_are_refused() {
    assert_eq!(Shape::new(ArchId::A2a3, 5, 1), Err(ShapeError::Lanes { asked: 5, max: 4 }));
    assert_eq!(Shape::new(ArchId::A5, 0, 1), Err(ShapeError::Lanes { asked: 0, max: 5 }));
    assert_eq!(Shape::new(ArchId::A2a3, 1, 73), Err(ShapeError::Cores { asked: 73, max: 72 }));
    assert_eq!(
        std::string::ToString::to_string(&Shape::new(ArchId::A5, 1, 0).unwrap_err()),
        "need 1 to 108 cores, got 0"
    );
}

#[test]
fn every_part_of_a_layout_changes_its_hash() {
    const BASE: Description = Description {
        name: "S",
        size: 8,
        align: 4,
        groups: &[&[Field { name: "a", offset: 0, size: 4 }], &[Field { name: "b", offset: 4, size: 4 }]],
    };
    let variants = [
        BASE,
        Description { name: "T", ..BASE },
        Description { size: 12, ..BASE },
        Description { align: 8, ..BASE },
        Description { groups: &[&[Field { name: "a", offset: 0, size: 4 }]], ..BASE },
        Description {
            groups: &[&[Field { name: "a", offset: 4, size: 4 }], &[Field { name: "b", offset: 0, size: 4 }]],
            ..BASE
        },
        Description {
            groups: &[&[Field { name: "ab", offset: 0, size: 4 }], &[Field { name: "", offset: 4, size: 4 }]],
            ..BASE
        },
    ];
    let hashes: BTreeSet<u64> = variants.iter().map(|variant| variant.fold(HASH_SEED)).collect();
    assert_eq!(hashes.len(), variants.len());
}

#[test]
fn unknown_values_of_the_wire_are_kept_and_printed() {
    let kinds: Vec<_> = SchedPhaseKind::KNOWN.iter().map(|kind| kind.0).collect();
    assert_eq!(kinds, [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]);
    assert_eq!(SchedPhaseKind(3).name(), None);
    assert_eq!(std::format!("{} {}", SchedPhaseKind(3), SchedPhaseKind::DRAIN), "unknown(3) drain");
    assert_eq!(host_phase::HostPhaseKind::KNOWN.len(), 17);
}

/// Any shape that either architecture allows.
pub(crate) fn shape() -> impl Strategy<Value = Shape> {
    prop_oneof![Just(ArchId::A2a3), Just(ArchId::A5)].prop_flat_map(|arch| {
        let facts = arch.facts();
        (1..=facts.lanes as u32, 1..=facts.max_cores as u32)
            .prop_map(move |(lanes, cores)| Shape::new(arch, lanes, cores).unwrap())
    })
}

proptest! {
    /// No two live words of a region overlap, all are aligned, none lies outside.
    #[test]
    #[cfg_attr(miri, ignore = "arithmetic only, slow to interpret")]
    fn words_of_a_region_are_disjoint(shape in shape(), subsystem in prop::sample::select(&SubsystemId::ALL[..])) {
        let region = region(subsystem, shape);
        let mut words: Vec<(usize, usize)> = Vec::new();
        for lane in (0..shape.lanes()).map(Lane) {
            let lane = region.lane(lane).unwrap();
            words.push((lane.ring, region.ready_entries() as usize * READY_ENTRY_BYTES));
            words.extend([(lane.head, 4), (lane.tail, 4)]);
        }
        let gates = region.gates();
        words.extend(
            [gates.rq_freeze_active, gates.rq_contended, gates.fq_freeze_active, gates.fq_contended].map(|at| (at, 4)),
        );
        let mut numbers = BTreeSet::new();
        for array in region.arrays() {
            for instance in (0..array.instances).map(Instance) {
                let pool = region.pool(array.kind, instance).unwrap();
                words.push((pool.free_ptrs, 8 * region.free_slots() as usize));
                words.extend([pool.free_head, pool.free_tail, pool.current_seq, pool.dropped_records].map(|at| (at, 4)));
                let further = [pool.total_records, pool.overflow_records, pool.mismatch_records];
                words.extend(further.into_iter().flatten().map(|at| (at, 4)));
                words.push((pool.current_ptr, 8));
                words.extend(pool.staging_ptr.map(|at| (at, 8)));
                numbers.insert(region.pool_number(array.kind, instance).unwrap());
            }
        }
        prop_assert_eq!(numbers, (0..region.pools()).collect());
        words.sort_unstable();
        for pair in words.windows(2) {
            prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{:?}", pair);
        }
        for (at, bytes) in words {
            prop_assert_eq!(at % bytes.min(8), 0);
            prop_assert!(at + bytes <= region.bytes());
        }
    }
}
