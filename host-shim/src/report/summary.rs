//! The report as a page for people.

use core::fmt;
use std::path::Path;

use super::units::{Bytes, Count, Many, OneLine, Span};
use super::{Artefacts, Chains, Change, Dfx, Freeze, Late, Payloads, Report, Sequences, Tensor};

/// A report to be shown; `folder` holds the run's artefacts, where they are known.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    /// What is shown.
    pub report: &'a Report,
    /// Where its files are.
    pub folder: Option<&'a Path>,
    /// Whether the report stands there too.
    pub has_report: bool,
}

/// Width of the column that says what a line is about.
const LABEL: usize = 10;

impl fmt::Display for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.report;
        writeln!(
            f,
            "{} on {} {}{}, gate scope {}, run {:013x}",
            OneLine(&report.model.name),
            report.device,
            report.arch,
            As(&report.target),
            report.gate_scope,
            report.run
        )?;
        self.model(f)?;
        self.verification(f)?;
        self.records(f)?;
        self.status(f)?;
        if let Some(folder) = self.folder {
            let Artefacts { trace, capture } = &report.artefacts;
            if let Some(trace) = trace {
                line(f, "trace", format_args!("{} (open in ui.perfetto.dev)", folder.join(trace).display()))?;
            }
            if self.has_report {
                line(f, "report", folder.join(Artefacts::REPORT).display())?;
            }
            if let Some(capture) = capture {
                let capture = folder.join(capture);
                line(f, "capture", capture.display())?;
                line(f, "", format_args!("check it with: sluice check {}", capture.display()))?;
            }
        }
        for wrong in &report.wrong {
            line(f, "wrong", wrong)?;
        }
        line(f, "result", self.verdict())
    }
}

/// The architecture that the device passes for, if it is known.
struct As<'a>(&'a str);

impl fmt::Display for As<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => Ok(()),
            "*" => f.write_str(" as any architecture"),
            target => write!(f, " as {}", OneLine(target)),
        }
    }
}

impl Page<'_> {
    fn model(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let model = &self.report.model;
        if self.report.broken_off {
            line(f, "executed", "unknown: the run broke off")?;
        } else if model.tpbs > 0 {
            line(
                f,
                "executed",
                format_args!(
                    "{} on {} in {}{}",
                    Many(model.executions, "execution", "executions"),
                    Many(model.tpbs.into(), "subgraph", "subgraphs"),
                    Span(self.report.duration_ns),
                    if self.report.interrupted { ", then interrupted" } else { "" }
                ),
            )?;
            let executed = Many(model.items_executed, "work item", "work items");
            if model.items_opaque == 0 {
                line(f, "", format_args!("{executed} moved bytes"))?;
            } else {
                let opaque = Count(model.items_opaque);
                line(
                    f,
                    "",
                    format_args!(
                        "{executed} moved bytes, {opaque} of programs that cannot be interpreted took time and \
                         moved nothing"
                    ),
                )?;
            }
        } else if self.report.interrupted {
            line(f, "executed", "interrupted before its end")?;
        }
        let name_width =
            model.inputs.iter().chain(&model.outputs).map(|tensor| tensor.name.len()).max().unwrap_or(0);
        let mut tensors = |label: &str, tensors: &[Tensor]| {
            tensors.iter().enumerate().try_for_each(|(i, tensor)| {
                let Tensor { name, size, tpb, var_id, pa } = tensor;
                let label = if i == 0 { label } else { "" };
                let size = Bytes(*size);
                line(
                    f,
                    label,
                    format_args!(
                        "{name:name_width$}  {size:>10}  TPB {tpb}, variable {var_id:<3} at {pa:#x}"
                    ),
                )
            })
        };
        tensors("inputs", &model.inputs)?;
        tensors("outputs", &model.outputs)
    }

    fn verification(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (report, verified) = (self.report, &self.report.verified);
        if report.model.tpbs > 0 && !report.broken_off {
            let right = |is: bool| if is { "right" } else { "NOT all right" };
            let mut label = "verified";
            if verified.outputs > 0 {
                line(
                    f,
                    std::mem::take(&mut label),
                    format_args!(
                        "{} compared byte for byte ({}): {}",
                        Many(verified.outputs, "output", "outputs"),
                        Bytes(verified.output_bytes),
                        right(report.outputs_verified)
                    ),
                )?;
            }
            if verified.swaps > 0 {
                line(
                    f,
                    std::mem::take(&mut label),
                    format_args!(
                        "{} read back from the device: {}",
                        Many(verified.swaps, "pointer, row or queue base", "pointers, rows and queue bases"),
                        right(report.swaps_verified)
                    ),
                )?;
            }
            if verified.records > 0 {
                line(
                    f,
                    label,
                    format_args!(
                        "{} compared with the set that the model has to give",
                        Many(verified.records, "record", "records")
                    ),
                )?;
            }
            line(
                f,
                "bindings",
                format_args!(
                    "{}, {}, {}, {}",
                    Many(report.kbl.build_hits, "build from cache", "builds from cache"),
                    Many(report.kbl.build_misses, "build anew", "builds anew"),
                    Many(report.kbl.tickets, "ticket", "tickets"),
                    Many(report.kbl.timeouts, "timeout", "timeouts")
                ),
            )?;
        }
        report.unverified.iter().try_for_each(|what| line(f, "unverified", what))
    }

    fn records(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.report.dfx.is_empty() {
            return line(f, "records", "none: profiling was off");
        }
        let head = ["produced", "collected", "lost", "buffers", "switches", "freezes rq/fq"];
        let [produced, collected, lost, buffers, switches, freezes] = head;
        line(
            f,
            "records",
            format_args!(
                "{:12} {produced:>14} {collected:>14} {lost:>10} {buffers:>9} {switches:>9} {freezes:>14}",
                ""
            ),
        )?;
        for (name, dfx) in &self.report.dfx {
            let counted = |figure: String| if self.report.broken_off { "?".into() } else { figure };
            line(
                f,
                "",
                format_args!(
                    "{name:12} {:>14} {:>14} {:>10} {:>9} {:>9} {:>14}",
                    counted(Count(dfx.produced).to_string()),
                    Count(dfx.collected),
                    counted(Count(dfx.dropped).to_string()),
                    counted(Count(dfx.buffers).to_string()),
                    counted(Count(dfx.switches).to_string()),
                    counted(format!("{}/{}", dfx.freezes.rq.count, dfx.freezes.fq.count)),
                ),
            )?;
        }
        let is_partial = |dfx: &Dfx| dfx.extent.is_partial() || dfx.passed_over > 0;
        for (name, dfx) in self.report.dfx.iter().filter(|(_, dfx)| is_partial(dfx)) {
            let passed_over = Many(dfx.passed_over, "item or submit", "items and submits");
            line(f, "sampled", format_args!("{name}: {}; {passed_over} passed over", dfx.extent))?;
        }
        for (name, dfx) in &self.report.dfx {
            for Change { number, told_ns, followed_ns, extent } in &dfx.changes {
                let label = if *number == 2 { "changed" } else { "" };
                match followed_ns {
                    Some(ns) => line(f, label, format_args!("{name}: {extent}, from {} on", Span(*ns)))?,
                    None => {
                        let told = Span(*told_ns);
                        line(f, label, format_args!("{name}: {extent}, told at {told}, not followed"))?;
                    }
                }
            }
        }
        for (name, dfx) in &self.report.dfx {
            for (cause, count) in dfx.lost.by_cause().into_iter().filter(|(_, count)| *count > 0) {
                line(f, "lost", format_args!("{name}: {} by {cause}", Many(count, "record", "records")))?;
            }
            for (gate, freeze) in [("rq", dfx.freezes.rq), ("fq", dfx.freezes.fq)] {
                let Freeze { count, total_ns, max_ns } = freeze;
                if count > 0 {
                    line(
                        f,
                        "freezes",
                        format_args!(
                            "{name} {gate}: {}, {} together, longest {}",
                            Many(count, "freeze", "freezes"),
                            Span(total_ns),
                            Span(max_ns)
                        ),
                    )?;
                }
            }
            if let Some(Late { tasks: tasks @ 1.., raw_ns, corrected_ns }) = dfx.late {
                line(
                    f,
                    "late",
                    format_args!(
                        "{}: {} of them, {} without the waits of their lane",
                        Many(tasks, "task whose end was seen late", "tasks whose end was seen late"),
                        Span(raw_ns),
                        Span(corrected_ns)
                    ),
                )?;
            }
        }
        if let Some(Sequences { records, missing, repeated }) = self.report.sequences {
            line(
                f,
                "numbers",
                format_args!(
                    "{} looked at one by one, {} missing, {} twice or out of order",
                    Many(records, "record", "records"),
                    Count(missing),
                    Count(repeated)
                ),
            )?;
        }
        if let Some(Payloads { count, bytes, wrong, missing }) = self.report.payloads {
            line(
                f,
                "payloads",
                format_args!(
                    "{} with {} compared, {} wrong, {} missing",
                    Many(count, "argument", "arguments"),
                    Bytes(bytes),
                    Count(wrong),
                    Count(missing)
                ),
            )?;
        }
        if let Some(Chains { tasks, links, torn }) = self.report.chains {
            line(
                f,
                "chains",
                format_args!(
                    "{} with {} compared, {} torn",
                    Many(tasks, "task", "tasks"),
                    Many(links, "link", "links"),
                    Count(torn)
                ),
            )?;
        }
        Ok(())
    }

    fn status(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(status) = &self.report.status else { return Ok(()) };
        for (number, lane) in status.lanes.iter().enumerate() {
            let label = if number == 0 { "lanes" } else { "" };
            line(f, label, format_args!("{number}: {lane}"))?;
        }
        let stacks = status.processors.iter().filter_map(|processor| processor.stack);
        if let Some(deepest) = stacks.max_by_key(|stack| stack.used_bytes) {
            let (used, bytes) = (Bytes(deepest.used_bytes), Bytes(deepest.bytes));
            line(f, "stacks", format_args!("at most {used} of {bytes} used on one processor"))?;
        }
        status
            .faults()
            .try_for_each(|(number, fault)| line(f, "fault", format_args!("processor {number}: {fault}")))
    }

    fn verdict(&self) -> String {
        let report = self.report;
        let loss = match (report.lossless, report.dfx.is_empty()) {
            (true, true) => "nothing recorded",
            (true, false) => "nothing lost",
            (false, _) if report.broken_off => "BROKEN OFF",
            (false, _) if report.loss_allowed => "RECORDS LOST, which was allowed",
            (false, _) => "RECORDS LOST",
        };
        let verified = &report.verified;
        let checks = match (report.wrong.is_empty(), report.unverified.is_empty()) {
            (true, true) if verified.outputs + verified.swaps + verified.records == 0 => "nothing to verify",
            (true, true) => "all verified",
            (true, false) => "all that could be verified was right",
            (false, _) => "NOT all right",
        };
        if report.model.tpbs > 0 || !report.wrong.is_empty() {
            format!("{loss}, {checks}")
        } else {
            loss.into()
        }
    }
}

fn line(f: &mut fmt::Formatter<'_>, label: &str, text: impl fmt::Display) -> fmt::Result {
    let text = format!("{label:LABEL$}  {}", OneLine(text));
    writeln!(f, "{}", text.trim_end())
}

#[cfg(test)]
mod tests {
    use super::super::{Dfx, Freezes, HighWater, Kbl, Lost, Model, Verified};
    use super::*;

    fn report() -> Report {
        let tensor = |name: &str, size, var_id, pa| Tensor { name: name.into(), size, tpb: 1, var_id, pa };
        let dfx = Dfx { produced: 18_000, collected: 18_000, buffers: 20, switches: 17, ..Dfx::default() };
        Report {
            device: "sim".into(),
            arch: "a2a3".into(),
            target: "cayman".into(),
            gate_scope: "all".into(),
            run: 0xbeef,
            lossless: true,
            outputs_verified: true,
            swaps_verified: true,
            duration_ns: 1_840_000_000,
            model: Model {
                name: "gather".into(),
                inputs: vec![tensor("a", 4096, 0, 0x1000), tensor("long name", 1 << 21, 12, 0x2000)],
                outputs: vec![tensor("out", 100, 2, 0x9000)],
                tpbs: 2,
                executions: 1_000,
                items_executed: 6_000,
                items_opaque: 0,
            },
            verified: Verified { output_bytes: 64 << 20, outputs: 1_000, swaps: 12_000, records: 18_000 },
            kbl: Kbl { build_hits: 999, build_misses: 1, tickets: 1_000, timeouts: 0 },
            dfx: [("swimlane".to_owned(), dfx)].into(),
            artefacts: Artefacts { trace: Some("trace.pftrace".into()), capture: Some("capture.slc".into()) },
            ..Report::default()
        }
    }

    fn page_in_folder(report: &Report) -> String {
        Page { report, folder: Some(Path::new("out")), has_report: true }.to_string()
    }

    #[test]
    fn a_good_run_reads_like_this() {
        let page = page_in_folder(&report());
        let expected = "\
gather on sim a2a3 as cayman, gate scope all, run 000000000beef
executed    1,000 executions on 2 subgraphs in 1.84 s
            6,000 work items moved bytes
inputs      a             4.0 KiB  TPB 1, variable 0   at 0x1000
            long name     2.0 MiB  TPB 1, variable 12  at 0x2000
outputs     out             100 B  TPB 1, variable 2   at 0x9000
verified    1,000 outputs compared byte for byte (64.0 MiB): right
            12,000 pointers, rows and queue bases read back from the device: right
            18,000 records compared with the set that the model has to give
bindings    999 builds from cache, 1 build anew, 1,000 tickets, 0 timeouts
records                        produced      collected       lost   buffers  switches  freezes rq/fq
            swimlane             18,000         18,000          0        20        17            0/0
trace       out/trace.pftrace (open in ui.perfetto.dev)
report      out/report.json
capture     out/capture.slc
            check it with: sluice check out/capture.slc
result      nothing lost, all verified
";
        assert_eq!(page, expected);
    }

    #[test]
    fn what_the_device_passes_for_is_said_where_it_is_known() {
        let first_line = |target: &str| {
            let page = page_in_folder(&Report { target: target.into(), ..report() });
            page.lines().next().unwrap().to_owned()
        };
        assert_eq!(first_line(""), "gather on sim a2a3, gate scope all, run 000000000beef");
        assert!(first_line("*").starts_with("gather on sim a2a3 as any architecture, gate scope all"));
    }

    #[test]
    fn only_what_was_written_is_named() {
        let unwritten = Report { artefacts: Artefacts::default(), ..report() };
        let page = Page { report: &unwritten, folder: Some(Path::new("out")), has_report: false }.to_string();
        assert!(!page.contains("out/"), "{page}");
    }

    #[test]
    fn of_a_dead_run_only_what_is_known_is_shown() {
        let dead = Report { lossless: false, broken_off: true, wrong: vec!["no summary".into()], ..report() };
        let page = Page { report: &dead, folder: None, has_report: false }.to_string();
        assert!(page.contains("\nexecuted    unknown: the run broke off\n"), "{page}");
        assert!(!page.contains("verified") && !page.contains("bindings"), "{page}");
        let row = page.lines().find(|line| line.contains("swimlane")).unwrap();
        assert!(row.split_whitespace().eq(["swimlane", "?", "18,000", "?", "?", "?", "?"]), "{row}");
        assert!(page.ends_with("result      BROKEN OFF, NOT all right\n"), "{page}");
    }

    #[test]
    fn nothing_to_verify_is_not_all_verified() {
        let none = Report { verified: Verified::default(), ..report() };
        let page = Page { report: &none, folder: None, has_report: false }.to_string();
        assert!(page.ends_with("result      nothing lost, nothing to verify\n"), "{page}");
    }

    #[test]
    fn names_do_not_break_lines() {
        let mut odd = report();
        (odd.model.name, odd.model.inputs[0].name) = ("a\nb".into(), "\u{1b}[31m".into());
        let page = Page { report: &odd, folder: Some(Path::new("x\ny")), has_report: true }.to_string();
        assert!(page.starts_with("a\\nb on sim"), "{page}");
        assert!(page.contains("report      x\\ny/report.json\n") && !page.contains('\u{1b}'), "{page}");
    }

    #[test]
    fn what_went_wrong_is_said_plainly() {
        let mut bad = report();
        bad.lossless = false;
        bad.outputs_verified = false;
        (bad.model.items_executed, bad.model.items_opaque) = (5_000, 1_000);
        bad.wrong = vec!["execution 3: output `out` differs first at byte 17".into()];
        bad.unverified = vec!["sg01: its program is opaque".into()];
        let swimlane = bad.dfx.get_mut("swimlane").unwrap();
        swimlane.dropped = 1000;
        swimlane.lost = Lost { corrupt: 1000, ..Lost::default() };
        swimlane.freezes =
            Freezes { fq: Freeze { count: 1, total_ns: 2_000, max_ns: 2_000 }, ..Freezes::default() };
        swimlane.high_water = HighWater { ready: 3, free_low: 0 };
        let page = Page { report: &bad, folder: None, has_report: false }.to_string();
        for line in [
            "lost        swimlane: 1,000 records by corrupt",
            "freezes     swimlane fq: 1 freeze, 2.0 us together, longest 2.0 us",
            "            5,000 work items moved bytes, 1,000 of programs that cannot be interpreted took time and moved nothing",
            "            1,000 outputs compared byte for byte (64.0 MiB): NOT all right",
            "unverified  sg01: its program is opaque",
            "wrong       execution 3: output `out` differs first at byte 17",
            "result      RECORDS LOST, NOT all right",
        ] {
            let line = line.replace("            1,000", "verified    1,000");
            assert!(page.lines().any(|found| found == line), "{line:?} in\n{page}");
        }
        assert!(!bad.is_good());
    }

    #[test]
    fn a_workload_without_a_model_shows_its_records() {
        let stress = Report { model: Model { name: "stress".into(), ..Model::default() }, ..report() };
        let page = Page { report: &stress, folder: None, has_report: false }.to_string();
        assert!(!page.contains("executed") && !page.contains("verified  "), "{page}");
        assert!(page.ends_with("result      nothing lost\n"), "{page}");
    }
}
